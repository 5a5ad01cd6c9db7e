// What is done: first what it will do, then that it is done, and how to undo it.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { post, Refused } from "./api";

/** Something that an operator can do. */
export interface Action {
  title: string;
  /** One sentence: what it will do. */
  text: string;
  verb: string;
  path: string;
  body?: unknown;
  danger?: boolean;
  /** What takes it back. */
  undo?: Action;
}

export type Act = (action: Action) => void;

/** A modal dialog: Esc and the button close it, and the focus goes back to where it was. */
export function Dialog({
  title,
  close,
  wide,
  children,
}: {
  title: ComponentChildren;
  close: () => void;
  wide?: boolean;
  children: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={wide ? "wide" : ""}
      aria-labelledby="dialog-title"
      onClose={close}
      onClick={(event) => {
        if (event.target === dialog.current) dialog.current?.close();
      }}
    >
      <div class="inside">
        <header>
          <h2 id="dialog-title">{title}</h2>
          <button type="button" class="quiet" aria-label="Close" onClick={() => dialog.current?.close()}>
            ✕
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface Done {
  text: string;
  ok: boolean;
  undo?: Action | undefined;
}

/** How long what was done is shown, in milliseconds; long enough to undo it. */
const SHOWN = 12_000;

export function Confirmed({ action, close, act }: { action: Action | null; close: () => void; act: Act }) {
  const [done, setDone] = useState<Done | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(null), SHOWN);
    return () => clearTimeout(timer);
  }, [done]);

  const run = async (one: Action): Promise<void> => {
    setBusy(true);
    try {
      const text = await post(one.path, one.body);
      setDone({ text: text.replaceAll("\n", " · "), ok: true, undo: one.undo });
    } catch (error) {
      const text = error instanceof Refused ? error.message : "the gateway does not answer";
      setDone({ text: text || "refused", ok: false });
    }
    setBusy(false);
    close();
  };

  return (
    <>
      {action && (
        <Dialog title={action.title} close={close} key={action.title}>
          <p>{action.text}</p>
          <div class="buttons">
            <button
              type="button"
              class={action.danger ? "danger" : "primary"}
              disabled={busy}
              onClick={() => void run(action)}
            >
              {action.verb}
            </button>
            <button type="button" onClick={close}>
              Cancel
            </button>
          </div>
        </Dialog>
      )}
      <div class="toasts" role="status" aria-live="polite">
        {done && (
          <p class={done.ok ? "toast good" : "toast bad"}>
            <span>
              <span aria-hidden="true">{done.ok ? "✔" : "✖"}</span> {done.ok ? "Done" : "Not done"}:{" "}
              <bdi>{done.text}</bdi>
            </span>
            {done.undo && (
              <button
                type="button"
                onClick={() => {
                  const undo = done.undo;
                  setDone(null);
                  if (undo) act(undo);
                }}
              >
                Undo
              </button>
            )}
            <button type="button" class="quiet" aria-label="Dismiss" onClick={() => setDone(null)}>
              ✕
            </button>
          </p>
        )}
      </div>
    </>
  );
}
