// The top: what needs a person, and how the last five minutes went.

import type { Act } from "./confirm";
import { resetRest, putBack, breakerReset } from "./targets";
import { count, millis, money } from "./text";
import type { Attention, Status, Sums } from "./types";

const SEVERITY = {
  bad: { icon: "✖", word: "Act" },
  warn: { icon: "▲", word: "Watch" },
  note: { icon: "◆", word: "Note" },
} as const;

/** The button that helps, where one does. */
function help(one: Attention, act: Act) {
  const target = one.target;
  const button = (verb: string, run: () => void) => (
    <button type="button" onClick={run}>
      {verb}
    </button>
  );
  if (target && (one.kind === "key_refused" || one.kind === "unpaid" || one.kind === "no_model"))
    return button("Reset the rest", () => act(resetRest(target)));
  if (target && one.kind === "out") return button("Put back", () => act(putBack(target)));
  if (target && one.kind === "forced") return button("Reset", () => act(breakerReset(target)));
  if (one.kind === "held" || one.kind === "stopped")
    return (
      <a class="button" href={one.kind === "held" ? "#held" : "#tasks"}>
        Decide
      </a>
    );
  return null;
}

export function Needs({ status, act }: { status: Status; act: Act }) {
  const all = status.attention;
  return (
    <section class="needs" aria-labelledby="needs-title">
      <h2 id="needs-title" class="hidden">
        What needs a person
      </h2>
      <div aria-live="polite">
        {all.length === 0 ? (
          <p class="panel calm">
            <span class="good">
              <span aria-hidden="true">✔</span> Well
            </span>
            Nothing needs you.
          </p>
        ) : (
          <ul class="panel">
            {all.map((one) => (
              <li key={one.kind + (one.target ?? "")} class={`severity-${one.severity}`}>
                <span class={one.severity === "note" ? "note" : one.severity}>
                  <span aria-hidden="true">{SEVERITY[one.severity].icon}</span>{" "}
                  {SEVERITY[one.severity].word}
                </span>
                <bdi>{one.text}</bdi>
                {help(one, act)}
              </li>
            ))}
          </ul>
        )}
      </div>
    </section>
  );
}

export function Numbers({ sums, running }: { sums: Sums; running: number }) {
  const answered = sums.ok + sums.recovered;
  const all = answered + sums.failed;
  const lost = sums.failed;
  const numbers: { name: string; value: string; more?: string; kind?: string; icon?: string }[] = [
    {
      name: "Answered",
      value: count(answered),
      more: all > 0 ? `${(Math.floor((answered / all) * 1_000) / 10).toFixed(1)} %` : "nothing asked",
    },
    { name: "Recovered", value: count(sums.recovered), more: "of those answered" },
    {
      name: "Lost",
      value: count(lost),
      more: `${count(sums.cancelled)} broken off by callers`,
      ...(lost > 0 ? { kind: "bad", icon: "✖" } : {}),
    },
    { name: "Under way", value: count(running) },
    {
      name: "First content",
      value: millis(sums.first_content_ms.p50),
      more: `95 % in ${millis(sums.first_content_ms.p95)}`,
    },
    {
      name: "Waiting added",
      value: millis(sums.added_ms.p50),
      more: `95 % in ${millis(sums.added_ms.p95)}`,
    },
    {
      name: "Tokens",
      value: count(sums.input_tokens + sums.output_tokens),
      more: `${count(sums.input_tokens)} in, ${count(sums.output_tokens)} out`,
    },
    { name: "Spent", value: money(sums.micro_dollars) },
  ];
  return (
    <section aria-labelledby="numbers-title">
      <h2 id="numbers-title">Last 5 minutes</h2>
      <dl class="numbers panel">
        {numbers.map((one) => (
          <div key={one.name}>
            <dt>{one.name}</dt>
            <dd class={one.kind ?? ""}>
              {one.icon && <span aria-hidden="true">{one.icon} </span>}
              {one.value}
              {one.more && <small>{one.more}</small>}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
