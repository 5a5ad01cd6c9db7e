// Who can be asked: the chains of the routes, and every target with its state.

import { useState } from "preact/hooks";
import { Dialog, type Act, type Action } from "./confirm";
import { millis, original, seconds, share, words } from "./text";
import type { Breaker, Status, TargetHealth, Traffic } from "./types";

/** How a target is: a sign, a word, and how bad. */
interface State {
  kind: "good" | "warn" | "bad" | "note";
  icon: string;
  word: string;
}

const NOT_ASKED: State = { kind: "note", icon: "○", word: "not asked yet" };
const WELL: State = { kind: "good", icon: "●", word: "well" };

function targetPath(of: "targets" | "breakers", action: string, target: string): string {
  return `/admin/${of}/${action}?target=${encodeURIComponent(original(target))}`;
}

export function resetRest(target: string): Action {
  return {
    title: `Reset the rest of ${target}`,
    text: `What is known against ${target} is forgotten, and the next call may ask it. Do it when a key was renewed, a bill paid, or the provider is back.`,
    verb: "Reset the rest",
    path: targetPath("targets", "reset", target),
  };
}

export function putBack(target: string): Action {
  return {
    title: `Put ${target} back`,
    text: `${target} is asked again from the next call on, as far as it does not rest.`,
    verb: "Put back",
    path: targetPath("targets", "in", target),
  };
}

function takeOut(target: string): Action {
  return {
    title: `Take ${target} out`,
    text: `No call is sent to ${target} until it is put back, not even when nobody else can be asked; calls under way there end undisturbed. It ends with a restart of the gateway.`,
    verb: "Take out",
    path: targetPath("targets", "out", target),
    danger: true,
    undo: putBack(target),
  };
}

export function breakerReset(target: string): Action {
  return {
    title: `Reset the breaker of ${target}`,
    text: `The breaker of ${target} is closed, nothing is counted against it, and it decides by itself again.`,
    verb: "Reset the breaker",
    path: targetPath("breakers", "reset", target),
  };
}

function breakerForced(target: string, open: boolean): Action {
  return open
    ? {
        title: `Open the breaker of ${target}`,
        text: `Calls to ${target} are refused until the breaker is reset, except single ones where nobody else is left.`,
        verb: "Open the breaker",
        path: targetPath("breakers", "open", target),
        danger: true,
        undo: breakerReset(target),
      }
    : {
        title: `Close the breaker of ${target}`,
        text: `Every call to ${target} is let through, however many fail, until the breaker is reset.`,
        verb: "Close the breaker",
        path: targetPath("breakers", "close", target),
        danger: true,
        undo: breakerReset(target),
      };
}

/** The state of one record; `since` is how old what is known of it is, in seconds. */
function stateOf(health: TargetHealth, since: number): State {
  if (health.out) return { kind: "note", icon: "◆", word: "taken out" };
  const cooling = health.cooling;
  if (cooling) {
    const left = cooling.for_s - since;
    switch (cooling.reason) {
      case "auth":
        return { kind: "bad", icon: "✖", word: "key refused" };
      case "billing":
        return { kind: "bad", icon: "✖", word: "unpaid" };
      case "model_not_found":
        return { kind: "warn", icon: "▲", word: "model not there" };
    }
    const word = left > 0 ? `resting ${seconds(left)}` : health.probing ? "probed" : "to be probed";
    return { kind: "warn", icon: "◐", word };
  }
  if (health.status === "down") return { kind: "bad", icon: "✖", word: "down" };
  if (health.status !== "healthy") return { kind: "warn", icon: "▲", word: "degraded" };
  return WELL;
}

interface Row {
  name: string;
  provider: string;
  health: TargetHealth | null;
  breaker: Breaker | null;
  traffic: Traffic | null;
  state: State;
  isProvider: boolean;
  /** What is beneath it, and is shown only when somebody wants it: of the well there is little to say. */
  isCalm: boolean;
}

function isClosed(breaker: Breaker | null): boolean {
  return breaker === null || breaker.state === "closed";
}

/** The breaker of a provider is the worst of those of its models and keys. */
function worstBreaker(name: string, status: Status): Breaker | null {
  const order = ["open", "isolated", "forced_open", "half_open", "forced_closed", "closed"];
  const rank = (one: Breaker): number => order.indexOf(one.state);
  const own = status.breakers.filter((one) => providerOf(one.target) === name);
  return own.sort((a, b) => rank(a) - rank(b))[0] ?? null;
}

function providerOf(target: string): string {
  return target.split(/[/#]/, 1)[0] ?? target;
}

/** Every provider of a chain, and beneath it what is known of its models and keys. */
function rowsOf(status: Status, since: number): Row[] {
  const names = new Set(status.routes.flatMap((route) => route.chain.flat()));
  for (const health of status.targets) names.add(providerOf(health.target));
  const degraded = new Set(
    status.health.filter((one) => one.status !== "healthy" && one.status !== "well").map((one) => one.provider),
  );
  const row = (name: string, isProvider: boolean): Row => {
    const health = status.targets.find((one) => one.target === name) ?? null;
    return {
      name,
      provider: providerOf(name),
      health,
      breaker: status.breakers.find((one) => one.target === name) ?? null,
      traffic: status.traffic.find((one) => one.target === name) ?? null,
      state: health ? stateOf(health, since) : NOT_ASKED,
      isProvider,
      isCalm: false,
    };
  };
  return [...names].flatMap((provider) => {
    const known = new Set([
      ...status.targets.map((one) => one.target),
      ...status.traffic.map((one) => one.target),
      ...status.breakers.map((one) => one.target),
    ]);
    const parts = [...known].filter((name) => name !== provider && providerOf(name) === provider).sort();
    const below = parts
      .map((name) => row(name, false))
      // What is well, is not being asked and has never failed says nothing.
      .filter((one) => one.state.kind !== "good" || one.traffic || one.breaker || one.health?.last_error)
      .map((one) => (one.state === NOT_ASKED ? { ...one, state: WELL } : one))
      .map((one) => ({ ...one, isCalm: one.state.kind === "good" && isClosed(one.breaker) }));
    const whole = row(provider, true);
    if (whole.state.kind === "good" || whole.state === NOT_ASKED) {
      const ill = below.filter((one) => one.state.kind === "bad" || one.state.kind === "warn");
      const keys = status.available.filter((one) => providerOf(one.target) === provider);
      const worst = ill.find((one) => one.state.kind === "bad") ?? ill[0];
      // Nothing can be had of it.
      if (worst && keys.length > 0 && keys.every((one) => !one.available)) whole.state = worst.state;
      else if (ill.length > 0) whole.state = { kind: "warn", icon: "◐", word: "partly resting" };
      else if (degraded.has(provider)) whole.state = { kind: "warn", icon: "▲", word: "degraded" };
    }
    whole.breaker ??= worstBreaker(provider, status);
    return [whole, ...below];
  });
}

const COLUMNS = [
  "Target",
  "State",
  "Breaker",
  "In flight",
  "First content",
  "Share",
  "Last failure",
  "Actions",
];
const NUMBERS = new Set(["In flight", "First content"]);

export function StateWord({ state }: { state: State }) {
  return (
    <span class={`state ${state.kind}`}>
      <span aria-hidden="true">{state.icon}</span> {state.word}
    </span>
  );
}

export function Targets({ status, since, act }: { status: Status; since: number; act: Act }) {
  const [opened, setOpened] = useState<string | null>(null);
  const [unfolded, setUnfolded] = useState<ReadonlySet<string>>(new Set());
  const fold = (provider: string): void => {
    const next = new Set(unfolded);
    if (!next.delete(provider)) next.add(provider);
    setUnfolded(next);
  };
  const rows = rowsOf(status, since);
  const shown = rows.find((row) => row.name === opened);
  return (
    <section aria-labelledby="targets-title">
      <h2 id="targets-title">Targets</h2>
      <div class="panel">
        <ul class="chains">
          {status.routes.map((route) => (
            <li key={route.name}>
              <span class="route">
                route <b>{route.name}</b>
              </span>
              {route.chain.map((link, at) => (
                <span class="link" key={at}>
                  {at > 0 && <span class="arrow" aria-label="then">→</span>}
                  {[link].flat().map((name, n) => (
                    <span key={name}>
                      {n > 0 && <span aria-label="or">|</span>}
                      <Chip name={name} row={rows.find((row) => row.name === name)} />
                    </span>
                  ))}
                </span>
              ))}
            </li>
          ))}
        </ul>
        <div class="scroll" tabIndex={0} role="region" aria-label="Targets and their states">
          <table class="targets" role="table">
            <thead role="rowgroup">
              <tr role="row">
                {COLUMNS.map((name) => (
                  <th key={name} scope="col" role="columnheader" class={NUMBERS.has(name) ? "number" : ""}>
                    {name === "Actions" ? <span class="hidden">{name}</span> : name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody role="rowgroup">
              {rows
                .filter((row) => !row.isCalm || unfolded.has(row.provider))
                .map((row) => (
                  <TargetRow
                    key={row.name}
                    row={row}
                    calm={rows.filter((one) => one.isCalm && one.provider === row.name).length}
                    unfolded={unfolded.has(row.name)}
                    fold={() => fold(row.name)}
                    since={since}
                    open={() => setOpened(row.name)}
                  />
                ))}
            </tbody>
          </table>
        </div>
      </div>
      {shown && (
        <TargetDialog
          row={shown}
          since={since}
          close={() => setOpened(null)}
          act={(action) => {
            setOpened(null);
            act(action);
          }}
        />
      )}
    </section>
  );
}

function Chip({ name, row }: { name: string; row: Row | undefined }) {
  const state = row?.state ?? NOT_ASKED;
  return (
    <span class={`chip ${state.kind}`}>
      <span aria-hidden="true">{state.icon}</span> <bdi>{name}</bdi>
      <span class="hidden">: {state.word}</span>
    </span>
  );
}

function TargetRow({
  row,
  calm,
  unfolded,
  fold,
  since,
  open,
}: {
  row: Row;
  calm: number;
  unfolded: boolean;
  fold: () => void;
  since: number;
  open: () => void;
}) {
  const { health, breaker, traffic } = row;
  const error = health?.last_error;
  return (
    <tr role="row" class={row.isProvider ? "provider" : "part"}>
      <th scope="row" role="rowheader">
        <bdi title={row.name}>{row.isProvider ? row.name : row.name.slice(row.provider.length)}</bdi>
        {calm > 0 && (
          <button
            type="button"
            class="link"
            aria-expanded={unfolded}
            onClick={fold}
          >
            {unfolded ? "−" : "+"} {calm} well<span class="hidden"> models and keys of {row.name}</span>
          </button>
        )}
      </th>
      <td role="cell" data-label="State">
        <StateWord state={row.state} />
      </td>
      <td role="cell" data-label="Breaker">{breaker ? <BreakerWord breaker={breaker} since={since} /> : <Nothing />}</td>
      <td role="cell" data-label="In flight" class="number">{row.isProvider && health ? health.in_flight : <Nothing />}</td>
      <td role="cell" data-label="First content" class="number">
        {traffic && traffic.first_content_ms.p50 !== null ? (
          <>
            {millis(traffic.first_content_ms.p50)}
            <small> / {millis(traffic.first_content_ms.p95)}</small>
          </>
        ) : (
          <Nothing />
        )}
      </td>
      <td role="cell" data-label="Share">
        {traffic ? (
          <span class="share">
            <meter min={0} max={1} value={traffic.share} aria-label={`Share of ${row.name}`} />
            {share(traffic.share)}
          </span>
        ) : (
          <Nothing />
        )}
      </td>
      <td role="cell" data-label="Last failure" class="error">
        {error ? (
          <>
            <b>{words(error.reason)}</b> <small>{seconds(error.ago_s + since)} ago</small>{" "}
            <bdi class="message" title={error.message}>
              {error.message}
            </bdi>
          </>
        ) : (
          <Nothing />
        )}
      </td>
      <td role="cell" data-label="Actions">
        <button type="button" aria-label={`Actions for ${row.name}`} onClick={open}>
          Actions
        </button>
      </td>
    </tr>
  );
}

function Nothing() {
  return (
    <span class="muted">
      <span aria-hidden="true">–</span>
      <span class="hidden">none</span>
    </span>
  );
}

function BreakerWord({ breaker, since }: { breaker: Breaker; since: number }) {
  const left = breaker.for_s === null ? "" : ` ${seconds(breaker.for_s - since)}`;
  const states: Record<string, State> = {
    closed: { kind: "good", icon: "●", word: "closed" },
    open: { kind: "bad", icon: "✖", word: `open${left}` },
    half_open: { kind: "warn", icon: "◐", word: "half-open" },
    forced_open: { kind: "note", icon: "◆", word: "held open" },
    forced_closed: { kind: "note", icon: "◆", word: "held closed" },
    isolated: { kind: "note", icon: "◆", word: "isolated" },
  };
  return <StateWord state={states[breaker.state] ?? { kind: "note", icon: "◆", word: breaker.state }} />;
}

function TargetDialog({
  row,
  since,
  close,
  act,
}: {
  row: Row;
  since: number;
  close: () => void;
  act: Act;
}) {
  const { health, breaker, traffic } = row;
  const actions: Action[] = [];
  if (health && (health.cooling || row.isProvider) && !health.out) actions.push(resetRest(row.name));
  // Models come from callers: a provider, or one of its keys, is what is taken out.
  if (health?.out) actions.push(putBack(row.name));
  else if (row.isProvider || health) actions.push(takeOut(row.name));
  // That of a provider is one of its models', which has a row of its own.
  if (breaker && breaker.target === row.name) {
    if (breaker.state !== "forced_open") actions.push(breakerForced(row.name, true));
    if (breaker.state !== "forced_closed") actions.push(breakerForced(row.name, false));
    if (breaker.state !== "closed") actions.push(breakerReset(row.name));
  }
  const error = health?.last_error;
  return (
    <Dialog title={<bdi>{row.name}</bdi>} close={close}>
      <dl class="facts">
        <dt>State</dt>
        <dd>
          <StateWord state={row.state} />
        </dd>
        {breaker && (
          <>
            <dt>Breaker</dt>
            <dd>
              <BreakerWord breaker={breaker} since={since} /> {breaker.failures} of {breaker.calls} calls failed
            </dd>
          </>
        )}
        {traffic && (
          <>
            <dt>Last 5 minutes</dt>
            <dd>
              {traffic.attempts} attempts, {traffic.failed} failed, {traffic.dropped} dropped
            </dd>
          </>
        )}
        {error && (
          <>
            <dt>Last failure</dt>
            <dd>
              {words(error.reason)}, {seconds(error.ago_s + since)} ago
              <pre>
                <bdi>{error.message}</bdi>
              </pre>
            </dd>
          </>
        )}
      </dl>
      <ul class="actions">
        {actions.map((action) => (
          <li key={action.verb}>
            <button type="button" class={action.danger ? "danger" : ""} onClick={() => act(action)}>
              {action.verb} …
            </button>
            <span>{action.text}</span>
          </li>
        ))}
        {actions.length === 0 && <li>There is nothing to do about it.</li>}
      </ul>
    </Dialog>
  );
}
