// The page: who is connected to what, and its parts in their order.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { isSession, logout, session, type Session } from "./api";
import { Around } from "./around";
import { Charts } from "./charts";
import { Confirmed, type Action } from "./confirm";
import { open } from "./feed";
import { Login } from "./login";
import { Needs, Numbers } from "./overview";
import { Requests } from "./requests";
import { StoryDialog } from "./story";
import { Targets } from "./targets";
import { seconds } from "./text";
import type { Frame } from "./types";

/** From when on what is shown is called old, in milliseconds. */
const OLD = 5_000;

export function Dashboard() {
  const [locked, setLocked] = useState<string | null>(null);
  const [known, setKnown] = useState<Session | null>(null);
  const [error, setError] = useState<string | null>(null);

  const begin = useCallback(() => {
    session()
      .then((one) => {
        setError(null);
        if (isSession(one)) {
          setKnown(one);
          setLocked(null);
        } else if (one.needs_key) setLocked(one.message);
        else setError(one.message);
      })
      .catch(() => {
        setError("The gateway does not answer. It is tried again.");
        setTimeout(begin, 2_000);
      });
  }, []);
  useEffect(begin, []);

  if (locked !== null)
    return (
      <Login
        done={(one) => {
          setKnown(one);
          setLocked(null);
        }}
      />
    );
  if (!known)
    return (
      <main class="alone">
        <h1>Steadfast</h1>
        <p role="status">{error ?? "Loading …"}</p>
      </main>
    );
  return (
    <Live
      needsKey={known.needs_key}
      locked={(message) => {
        setKnown(null);
        setLocked(message);
      }}
    />
  );
}

function Live({ needsKey, locked }: { needsKey: boolean; locked: (message: string) => void }) {
  const [frame, setFrame] = useState<Frame | null>(null);
  const [live, setLive] = useState(false);
  const [now, setNow] = useState(Date.now());
  const [action, setAction] = useState<Action | null>(null);
  const [story, setStory] = useState<string | null>(null);
  const came = useRef(Date.now());

  useEffect(
    () =>
      open({
        frame: (one) => {
          came.current = Date.now();
          setFrame(one);
          setNow(came.current);
        },
        live: setLive,
        locked,
      }),
    [],
  );
  // Countdowns go on between frames.
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);

  const since = Math.max(0, (now - came.current) / 1_000);
  const isOld = now - came.current > OLD;
  return (
    <>
      <a class="skip" href="#main">
        To the content
      </a>
      <header class="top">
        <h1>
          <span class="mark" aria-hidden="true" />
          Steadfast
        </h1>
        <Connection live={live} old={frame !== null && (isOld || !live)} since={since} />
        <nav aria-label="The gateway">
          <button
            type="button"
            onClick={() =>
              setAction({
                title: "Read the configuration again",
                text: "The file of the configuration is read again. If something is wrong with it, what is in force stays; requests under way are not touched.",
                verb: "Reload",
                path: "/admin/reload",
              })
            }
          >
            Reload
          </button>
          {needsKey && (
            <button type="button" onClick={() => void logout().then(() => locked("logged out"))}>
              Log out
            </button>
          )}
        </nav>
      </header>
      <main id="main" class={isOld ? "stale" : ""}>
        {frame === null ? (
          <p class="empty" role="status">
            Waiting for the gateway …
          </p>
        ) : (
          <>
            <Needs status={frame.status} act={setAction} />
            <Numbers sums={frame.last_5_min} running={frame.running} />
            <Targets status={frame.status} since={since} act={setAction} />
            <Charts lately={frame.last_5_min} />
            <Requests frame={frame} open={setStory} />
            <Around frame={frame} act={setAction} />
            <footer>
              Steadfast {frame.version} · {frame.remembered.toLocaleString("en-US")} requests
              remembered, in memory alone; no prompts, no answers.
            </footer>
          </>
        )}
      </main>
      <Confirmed action={action} close={() => setAction(null)} act={setAction} />
      {story !== null && <StoryDialog id={story} close={() => setStory(null)} />}
    </>
  );
}

function Connection({ live, old, since }: { live: boolean; old: boolean; since: number }) {
  const [kind, icon, text] = old
    ? ["warn", "▲", `shown is ${seconds(since)} old`]
    : live
      ? ["good", "●", "live"]
      : ["note", "○", "connecting"];
  return (
    <p class={`connection ${kind}`} role="status">
      <span aria-hidden="true">{icon}</span> {text}
    </p>
  );
}
