// Around the agent: what is held, stopped, learned, spent and kept.

import { useEffect, useState } from "preact/hooks";
import { get } from "./api";
import type { Act, Action } from "./confirm";
import { Fleet } from "./fleet";
import { Letters, Runs, Sessions, Spend } from "./kept";
import { Offer, Panel } from "./panel";
import { count, original, seconds, words } from "./text";
import type { Account, Fleet as FleetState, Frame, Held, Letter, Run, Status, Thread } from "./types";

/** What is at `path`, asked for again and again; nothing where `path` is null. */
function useEvery<T>(path: string | null, every: number, again: unknown): T | null {
  const [known, setKnown] = useState<T | null>(null);
  useEffect(() => {
    if (path === null) {
      setKnown(null);
      return;
    }
    let gone = false;
    const load = (): void => {
      if (document.hidden) return;
      get<T>(path)
        .then((one) => {
          if (!gone) setKnown(one);
        })
        // The feed says that the gateway is gone.
        .catch(() => undefined);
    };
    load();
    const timer = setInterval(load, every);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [path, every, again]);
  return known;
}

export function Around({ frame, act }: { frame: Frame; act: Act }) {
  const { status } = frame;
  const { shared } = status.fleet;
  const named = { letters: shared || status.keeps.letters, runs: shared || status.keeps.runs };
  const held = useEvery<{ escalations: Held[] }>(
    // What others hold is decided here, too.
    shared || status.escalation.held > 0 ? "/admin/escalations" : null,
    2_000,
    status.escalation.held,
  );
  const fleet = useEvery<FleetState>(shared ? "/admin/fleet" : null, 5_000, null);
  const spend = useEvery<{ accounts: Account[] }>("/admin/spend", 10_000, null);
  const letters = useEvery<{ letters: Letter[] }>(named.letters ? "/admin/letters" : null, 10_000, null);
  const sessions = useEvery<{ sessions: Thread[] }>(
    status.keeps.sessions ? "/admin/sessions" : null,
    10_000,
    null,
  );
  const runs = useEvery<{ runs: Run[] }>(named.runs ? "/admin/runs" : null, 10_000, null);
  return (
    <section aria-labelledby="around-title">
      <h2 id="around-title">Around the agent</h2>
      <div class="around">
        <HeldRequests held={held?.escalations ?? []} act={act} />
        <Tasks status={status} act={act} />
        <Learned status={status} act={act} />
        <Spend accounts={spend?.accounts ?? []} />
        <Letters isNamed={named.letters} letters={letters?.letters ?? []} act={act} />
        <Sessions isNamed={status.keeps.sessions} sessions={sessions?.sessions ?? []} />
        <Runs isNamed={named.runs} runs={runs?.runs ?? []} now={frame.at_ms} />
        <Fleet fleet={fleet} />
      </div>
    </section>
  );
}

/** What each decision does, in one sentence. */
function decision(held: Held, kind: string, target?: string): Action {
  const of = target ? ` at ${target}` : "";
  const body: Record<string, string> = { decision: kind };
  if (target) body["target"] = original(target);
  const texts: Record<string, [string, string]> = {
    try_again: ["Try again", "The request is tried again from the start of its chain, as if it had just come."],
    try_target: [`Try ${target ?? ""}`, `The request is sent to ${target ?? ""}, whatever is known against it.`],
    reset_cooldown: [
      `Reset ${target ?? ""}`,
      `What keeps ${target ?? ""} from being asked is forgotten, for all calls, and the request is tried again.`,
    ],
    refuse: ["Refuse", "Its caller gets the failure that the targets have ended with."],
  };
  const [verb, text] = texts[kind] ?? [words(kind), `The decision ${words(kind)} is sent.`];
  return {
    title: `Request ${held.id}: ${verb.toLowerCase()}${kind === "try_target" ? "" : of}`,
    text,
    verb,
    path: `/admin/escalations/${encodeURIComponent(held.id)}`,
    body,
    danger: kind === "refuse",
  };
}

function HeldRequests({ held, act }: { held: Held[]; act: Act }) {
  return (
    <Panel id="held" title="Held requests" isEmpty={held.length === 0} empty="No request waits for a person." wide>
      <ul class="rows">
        {held.map((one) => (
          <li key={one.id}>
            <p>
              <b>
                <bdi>{one.model || one.id}</bdi>
              </b>{" "}
              {one.tenant && (
                <>
                  of <bdi>{one.tenant}</bdi>,{" "}
                </>
              )}
              {words(one.reason)} after {one.attempts} attempts · <b>{seconds(one.left_s)} left</b>
            </p>
            <div class="buttons">
              {one.decisions.includes("try_again") && <Offer act={act} action={decision(one, "try_again")} />}
              {one.decisions.includes("try_target") &&
                one.targets
                  .slice(0, 6)
                  .map(({ target }) => (
                    <Offer key={target} act={act} action={decision(one, "try_target", target)} />
                  ))}
              {one.decisions.includes("reset_cooldown") &&
                one.targets
                  .filter((target) => target.back_in_s !== null)
                  .slice(0, 6)
                  .map(({ target }) => (
                    <Offer key={`reset ${target}`} act={act} action={decision(one, "reset_cooldown", target)} />
                  ))}
              {one.decisions.includes("try_model") && <Write held={one} kind="try_model" act={act} />}
              {one.decisions.includes("answer") && <Write held={one} kind="answer" act={act} />}
              {one.decisions.includes("refuse") && <Offer act={act} action={decision(one, "refuse")} />}
            </div>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

/** The decisions for which an operator writes something. */
const WRITTEN = {
  try_model: {
    verb: "Try model",
    text: "This model is asked for instead, of whichever target serves it.",
    label: "Model for request",
    placeholder: "Another model",
    body: (text: string) => ({ decision: "try_model", model: text }),
  },
  answer: {
    verb: "Answer",
    text: "Its caller gets this text as the answer of the model.",
    label: "Answer to request",
    placeholder: "An answer of your own",
    body: (text: string) => ({ decision: "answer", text }),
  },
};

function Write({ held, kind, act }: { held: Held; kind: keyof typeof WRITTEN; act: Act }) {
  const [written, setWritten] = useState("");
  const { verb, text, label, placeholder, body } = WRITTEN[kind];
  return (
    <form
      class="inline"
      onSubmit={(event) => {
        event.preventDefault();
        act({
          title: `Request ${held.id}: ${verb.toLowerCase()}`,
          text,
          verb,
          path: `/admin/escalations/${encodeURIComponent(held.id)}`,
          body: body(written),
        });
      }}
    >
      <input
        type="text"
        required
        aria-label={`${label} ${held.id}`}
        placeholder={placeholder}
        value={written}
        onInput={(event) => setWritten(event.currentTarget.value)}
      />
      <button type="submit">{verb} …</button>
    </form>
  );
}

function Tasks({ status, act }: { status: Status; act: Act }) {
  const stopped = status.guard.tasks.filter((task) => task.stopped);
  return (
    <Panel id="tasks" title="Stopped tasks" isEmpty={stopped.length === 0} empty="The guard has stopped no task.">
      <ul class="rows">
        {stopped.map((task) => {
          const query = new URLSearchParams({ task: original(task.task) });
          if (task.tenant) query.set("tenant", original(task.tenant));
          return (
            <li key={`${task.tenant ?? ""}/${task.task}`}>
              <p>
                <b>
                  <bdi>{task.task}</bdi>
                </b>{" "}
                {task.tenant && (
                  <>
                    of <bdi>{task.tenant}</bdi>,{" "}
                  </>
                )}
                after {task.calls} calls: <bdi>{task.stopped}</bdi>
              </p>
              <div class="buttons">
                <Offer
                  act={act}
                  action={{
                    title: `Let the task ${task.task} go on`,
                    text: "The task gets all of its limits anew, and its next call is let through.",
                    verb: "Let it go on",
                    path: `/admin/guard/extend?${query}`,
                  }}
                />
              </div>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function Learned({ status, act }: { status: Status; act: Act }) {
  const { learned, refused } = status.compaction;
  const models = [...new Set([...learned.map((one) => one.model), ...refused.map((one) => one.model)])];
  return (
    <Panel
      id="learned"
      title="Learned of models"
      isEmpty={models.length === 0}
      empty="No provider has stated a window or refused a parameter."
    >
      <ul class="rows">
        {models.map((model) => {
          const window = learned.find((one) => one.model === model)?.window;
          const parameters = refused.filter((one) => one.model === model).map((one) => one.parameter);
          return (
            <li key={model}>
              <p>
                <b>
                  <bdi>{model}</bdi>
                </b>
                {window !== undefined && `: a window of ${count(window)} tokens`}
                {parameters.length > 0 && (
                  <>
                    : refuses <bdi>{parameters.join(", ")}</bdi>
                  </>
                )}
              </p>
              <div class="buttons">
                <Offer
                  act={act}
                  action={{
                    title: `Forget what was learned of ${model}`,
                    text: "The next conversation that does not fit, or parameter that is refused, teaches it anew.",
                    verb: "Forget it",
                    path: `/admin/compaction/forget?model=${encodeURIComponent(original(model))}`,
                  }}
                />
              </div>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

