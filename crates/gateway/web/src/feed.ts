// The feed: kept open, and opened again by itself.

import { isSession, session } from "./api";
import { parse } from "./text";
import type { Frame } from "./types";

/** The first wait before it is opened again, and the longest, in milliseconds. */
const [FIRST, LONGEST] = [500, 10_000];

/** A feed that is silent for so long is broken: the gateway sends something every two seconds. */
const SILENT = 8_000;

export interface FeedEvents {
  frame(frame: Frame): void;
  /** Whether it is connected. */
  live(live: boolean): void;
  /** Somebody has to log in. */
  locked(message: string): void;
}

/** Opens it; returns what closes it. */
export function open(events: FeedEvents): () => void {
  let wait = FIRST;
  let closed = false;
  let source: EventSource | null = null;
  let timer = 0;
  let silence = 0;

  const again = (): void => {
    source?.close();
    source = null;
    clearTimeout(silence);
    if (closed) return;
    events.live(false);
    // Not all pages at once.
    timer = window.setTimeout(check, wait * (0.75 + Math.random() / 2));
    wait = Math.min(wait * 2, LONGEST);
  };

  // A feed does not say why it is refused.
  const check = async (): Promise<void> => {
    try {
      const one = await session();
      if (closed) return;
      if (isSession(one)) connect();
      else if (one.needs_key) events.locked(one.message);
      else again();
    } catch {
      again();
    }
  };

  const heard = (): void => {
    clearTimeout(silence);
    silence = window.setTimeout(again, SILENT);
  };

  const connect = (): void => {
    source = new EventSource("/dashboard/feed");
    source.onopen = heard;
    source.onerror = again;
    source.onmessage = (message: MessageEvent<string>) => {
      heard();
      wait = FIRST;
      events.live(true);
      events.frame(parse<Frame>(message.data));
    };
    heard();
  };

  connect();
  return () => {
    closed = true;
    clearTimeout(timer);
    clearTimeout(silence);
    source?.close();
  };
}
