// One request's story: its attempts as bars, and between them what was done.

import { useEffect, useState } from "preact/hooks";
import { get, Refused } from "./api";
import { Dialog } from "./confirm";
import { outcomeOf } from "./requests";
import { clock, count, millis, money, original, words } from "./text";
import type { Attempt, Step, Story } from "./types";

/** How often one that is under way is asked for again, in milliseconds. */
const EVERY = 1_000;

export function StoryDialog({ id, close }: { id: string; close: () => void }) {
  const [story, setStory] = useState<Story | null>(null);
  const [error, setError] = useState<string | null>(null);

  useEffect(() => {
    let timer = 0;
    let gone = false;
    const load = (): void => {
      get<Story>(`/admin/requests/${encodeURIComponent(original(id))}`)
        .then((one) => {
          if (gone) return;
          setStory(one);
          if (one.outcome === "running") timer = window.setTimeout(load, EVERY);
        })
        .catch((why: unknown) => {
          if (!gone) setError(why instanceof Refused ? why.message : "the gateway does not answer");
        });
    };
    load();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [id]);

  return (
    <Dialog title={<bdi>{id}</bdi>} close={close} wide>
      {error && <p class="bad">{error}</p>}
      {!story && !error && <p>Loading …</p>}
      {story && (
        <>
          <Facts story={story} />
          <Waterfall story={story} />
        </>
      )}
    </Dialog>
  );
}

function Facts({ story }: { story: Story }) {
  const outcome = outcomeOf(story);
  const who = (["tenant", "key", "agent", "session", "task", "route"] as const).filter((name) => story[name]);
  return (
    <dl class="facts columns">
      <dt>Outcome</dt>
      <dd>
        <span class={`state ${outcome.kind}`}>
          <span aria-hidden="true">{outcome.icon}</span> {outcome.word}
        </span>{" "}
        {story.reason && words(story.reason)}
        {story.evidence && (
          <small>
            {" "}
            by <bdi>{story.evidence}</bdi>
          </small>
        )}
      </dd>
      <dt>Asked for</dt>
      <dd>
        <bdi>{story.model || "–"}</bdi> <small>({story.dialect}{story.stream ? ", in pieces" : ""})</small>
      </dd>
      <dt>At</dt>
      <dd>{clock(story.at)}</dd>
      <dt>Took</dt>
      <dd>
        {millis(story.ms)}, first content {millis(story.first_content_ms)}
      </dd>
      {story.usage && (
        <>
          <dt>Tokens</dt>
          <dd>
            {count(story.usage.input ?? 0)} in, {count(story.usage.output ?? 0)} out · {money(story.micro_dollars)}
          </dd>
        </>
      )}
      {who.map((name) => (
        <>
          <dt key={name}>{name[0]?.toUpperCase() + name.slice(1)}</dt>
          <dd key={`${name}-value`}>
            <bdi>{story[name]}</bdi>
          </dd>
        </>
      ))}
      {story.left_out && (
        <>
          <dt>Left out</dt>
          <dd>
            <bdi>{story.left_out}</bdi>
          </dd>
        </>
      )}
      {story.error && (
        <>
          <dt>Error</dt>
          <dd>
            <pre>
              <bdi>{story.error}</bdi>
            </pre>
          </dd>
        </>
      )}
    </dl>
  );
}

type Row = { at: number; attempt: Attempt } | { at: number; step: Step };

function Waterfall({ story }: { story: Story }) {
  const rows: Row[] = [
    ...story.attempts.map((attempt) => ({ at: attempt.at_ms, attempt })),
    ...story.steps.map((step) => ({ at: step.at_ms, step })),
  ].sort((a, b) => a.at - b.at);
  const ends = story.attempts.map((one) => one.at_ms + (one.ms ?? 0));
  const whole = Math.max(story.ms, ...ends, 1);
  const share = (ms: number): string => `${Math.min(100, Math.max(0, (ms / whole) * 100)).toFixed(2)}%`;
  if (rows.length === 0) return <p class="muted">Nobody was asked for it.</p>;
  return (
    <>
      <h3>What happened</h3>
      <ol class="waterfall">
        {rows.map((row, n) =>
          "attempt" in row ? (
            <AttemptRow key={n} attempt={row.attempt} whole={whole} share={share} />
          ) : (
            <StepRow key={n} step={row.step} whole={whole} share={share} />
          ),
        )}
      </ol>
      <p class="scale" aria-hidden="true">
        <span>0</span>
        <span>{millis(whole / 2)}</span>
        <span>{millis(whole)}</span>
      </p>
      {story.steps_dropped > 0 && <p class="muted">{story.steps_dropped} more steps were not kept.</p>}
    </>
  );
}

const ENDS: Record<string, { kind: string; icon: string; word: string }> = {
  answered: { kind: "good", icon: "✔", word: "answered whole" },
  failed: { kind: "bad", icon: "✖", word: "failed" },
  dropped: { kind: "muted", icon: "⊘", word: "dropped" },
  underway: { kind: "note", icon: "◌", word: "under way" },
};

function AttemptRow({
  attempt,
  whole,
  share,
}: {
  attempt: Attempt;
  whole: number;
  share: (ms: number) => string;
}) {
  const end = ENDS[attempt.outcome] ?? { kind: "note", icon: "◌", word: attempt.outcome };
  const took = attempt.ms ?? whole - attempt.at_ms;
  const first = attempt.first_content_ms;
  return (
    <li class={`attempt ${end.kind}`}>
      <div class="what">
        <b>
          {attempt.number}. <bdi>{attempt.target ?? "nobody"}</bdi>
        </b>
        <span class={`state ${end.kind}`}>
          <span aria-hidden="true">{end.icon}</span> {end.word}
        </span>
        {attempt.reason && <span>{words(attempt.reason)}</span>}
        {attempt.evidence && (
          <small>
            by <bdi>{attempt.evidence}</bdi>
          </small>
        )}
        <small>
          from {millis(attempt.at_ms)}
          {first !== null && `, first content after ${millis(first)}`}
          {attempt.ms !== null && `, ${millis(attempt.ms)} long`}
          {attempt.bytes > 0 && `, ${count(attempt.bytes)} bytes`}
          {attempt.usage && `, ${count((attempt.usage.input ?? 0) + (attempt.usage.output ?? 0))} tokens`}
        </small>
      </div>
      <div class="track" aria-hidden="true">
        <span class="bar" style={{ left: share(attempt.at_ms), width: share(took) }}>
          {first !== null && took > 0 && (
            <span class="first" style={{ left: `${Math.min(100, (first / took) * 100).toFixed(2)}%` }} />
          )}
        </span>
      </div>
    </li>
  );
}

function StepRow({ step, whole, share }: { step: Step; whole: number; share: (ms: number) => string }) {
  // A target rests for longer than the request takes.
  const wait = Math.min(step.wait_ms ?? 0, whole - step.at_ms);
  return (
    <li class="step">
      <div class="what">
        <code>{step.step}</code>
        {step.target && <bdi>{step.target}</bdi>}
        {step.reason && <span>{words(step.reason)}</span>}
        {step.wait_ms !== null && <span>wait {millis(step.wait_ms)}</span>}
        {step.detail && <bdi>{step.detail}</bdi>}
        <small>at {millis(step.at_ms)}</small>
      </div>
      <div class="track" aria-hidden="true">
        <span
          class={wait > 0 ? "bar wait" : "tick"}
          style={wait > 0 ? { left: share(step.at_ms), width: share(wait) } : { left: share(step.at_ms) }}
        />
      </div>
    </li>
  );
}
