// What is on disk: what was spent, and what a service beside the gateway keeps in its folders.

import type { ComponentChildren } from "preact";
import type { Act, Action } from "./confirm";
import { Listing, Offer, Panel } from "./panel";
import { count, money, original, seconds, words } from "./text";
import type { Account, Letter, Run, Thread } from "./types";

export function Spend({ accounts }: { accounts: Account[] }) {
  const rows = accounts
    .map((one) => ({
      name: one.tenant ?? one.key ?? one.summaries ?? "",
      kind: one.tenant !== undefined ? "tenant" : one.key !== undefined ? "key" : "summaries",
      ...one,
    }))
    .sort((a, b) => b.month.micro_dollars - a.month.micro_dollars);
  return (
    <Panel
      id="spend"
      title="Spend"
      isEmpty={rows.length === 0}
      empty={
        <>
          Nothing is recorded: set <code>spend_limit.record</code>, or a cap.
        </>
      }
      wide
    >
      <Listing
        label="Spend by account"
        columns={[
          ["Account"],
          ["Kind"],
          ["Hour", "number"],
          ["Day", "number"],
          ["30 days", "number"],
          ["Tokens, 30 days", "number"],
        ]}
      >
        {rows.map((one) => (
          <tr key={one.kind + one.name}>
            <th scope="row" class="name">
              <bdi>{one.name || "(none)"}</bdi>
            </th>
            <td>{one.kind}</td>
            <td class="number">{money(one.hour.micro_dollars)}</td>
            <td class="number">{money(one.day.micro_dollars)}</td>
            <td class="number">{money(one.month.micro_dollars)}</td>
            <td class="number">{count(one.month.tokens)}</td>
          </tr>
        ))}
      </Listing>
    </Panel>
  );
}

/** What is in a folder that a key of `[observe]` names; `owner` is who keeps it there. */
function Folder({
  name,
  title,
  owner,
  isNamed,
  nothing,
  isEmpty,
  children,
}: {
  name: string;
  title: string;
  owner: string;
  isNamed: boolean;
  nothing: string;
  isEmpty: boolean;
  children: ComponentChildren;
}) {
  const unnamed = (
    <>
      Not shown: <code>observe.{name}</code> names the folder of {owner}.
    </>
  );
  return (
    <Panel id={name} title={title} isEmpty={!isNamed || isEmpty} empty={isNamed ? nothing : unnamed}>
      {children}
    </Panel>
  );
}

export function Letters({ isNamed, letters, act }: { isNamed: boolean; letters: Letter[]; act: Act }) {
  const waiting = letters.filter((one) => one.state === "waiting");
  const drain = (letter?: Letter): Action => ({
    title: letter ? `Send the letter ${letter.key} again` : "Send all letters again",
    text: letter
      ? "It is due at once, with all of its retries: the service that delivers from the folder sends it at its next start."
      : "Every letter that waits is due at once, with all of its retries: the service that delivers from the folder sends them at its next start.",
    verb: "Send again",
    path: letter ? `/admin/letters/drain?key=${encodeURIComponent(original(letter.key))}` : "/admin/letters/drain",
  });
  return (
    <Folder
      name="letters"
      title="Dead letters"
      owner="a service that delivers"
      isNamed={isNamed}
      nothing="No message waits that could not be delivered."
      isEmpty={letters.length === 0}
    >
      {waiting.length > 1 && (
        <button type="button" onClick={() => act(drain())}>
          Send all again …
        </button>
      )}
      <ul class="rows">
        {letters.slice(0, 50).map((one) => (
          <li key={one.key}>
            <p>
              <b>
                <bdi>{one.key}</bdi>
              </b>{" "}
              to <bdi>{one.destination}</bdi>, {one.state}, after {one.attempts} retries: <bdi>{one.error}</bdi>
            </p>
            {one.state === "waiting" && (
              <div class="buttons">
                <Offer act={act} action={drain(one)} />
              </div>
            )}
          </li>
        ))}
      </ul>
    </Folder>
  );
}

export function Sessions({ isNamed, sessions }: { isNamed: boolean; sessions: Thread[] }) {
  return (
    <Folder
      name="sessions"
      title="Sessions"
      owner="an agent"
      isNamed={isNamed}
      nothing="There is no conversation in the folder."
      isEmpty={sessions.length === 0}
    >
      <Listing
        label="Sessions"
        columns={[["Thread"], ["Session", "number"], ["Turns", "number"], ["Messages", "number"], ["Last"]]}
      >
        {sessions.slice(0, 100).map((one) => (
          <tr key={one.thread}>
            <th scope="row" class="name">
              <bdi>{one.thread}</bdi>
            </th>
            <td class="number">{one.session}</td>
            <td class="number">{one.turns}</td>
            <td class="number">{one.messages}</td>
            <td>{one.last ?? "–"}</td>
          </tr>
        ))}
      </Listing>
    </Folder>
  );
}

const RUNS: Record<string, { kind: string; icon: string }> = {
  running: { kind: "note", icon: "◌" },
  completed: { kind: "good", icon: "✔" },
  failed: { kind: "bad", icon: "✖" },
  cancelled: { kind: "muted", icon: "⊘" },
  watchdog_timeout: { kind: "bad", icon: "✖" },
  ghost_sweep: { kind: "warn", icon: "▲" },
};

export function Runs({ isNamed, runs, now }: { isNamed: boolean; runs: Run[]; now: number }) {
  return (
    <Folder
      name="runs"
      title="Runs"
      owner="a registry"
      isNamed={isNamed}
      nothing="There is no run in the folder."
      isEmpty={runs.length === 0}
    >
      <Listing label="Runs" columns={[["Run"], ["State"], ["Agent"], ["Took", "number"], ["Reason"]]}>
        {runs.slice(0, 100).map((one) => {
          const state = RUNS[one.state] ?? { kind: "note", icon: "◆" };
          return (
            <tr key={one.id}>
              <th scope="row" class="name">
                <bdi>{one.id}</bdi>
              </th>
              <td>
                <span class={`state ${state.kind}`}>
                  <span aria-hidden="true">{state.icon}</span> {words(one.state)}
                </span>
              </td>
              <td class="name">
                <bdi>{one.agent ?? one.task ?? "–"}</bdi>
              </td>
              <td class="number">{seconds(((one.ended_ms ?? now) - one.started_ms) / 1_000)}</td>
              <td class="name">
                <bdi>{one.reason ?? ""}</bdi>
              </td>
            </tr>
          );
        })}
      </Listing>
    </Folder>
  );
}
