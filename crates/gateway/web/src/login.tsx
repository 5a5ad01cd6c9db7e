// Where somebody gives the admin key. It is not kept: the gateway answers with a session.

import { useEffect, useRef, useState } from "preact/hooks";
import { isSession, login, type Session } from "./api";

export function Login({ done }: { done: (session: Session) => void }) {
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);

  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const key = new FormData(form).get("key");
    // It is in the page no longer than it has to be.
    form.reset();
    setError(null);
    setBusy(true);
    try {
      const one = await login(typeof key === "string" ? key.trim() : "");
      if (isSession(one)) done(one);
      else setError(one.message);
    } catch {
      setError("the gateway does not answer");
    }
    setBusy(false);
  };

  return (
    <main class="alone">
      <form class="panel login" onSubmit={(event) => void submit(event)}>
        <h1>
          <span class="mark" aria-hidden="true" />
          Steadfast
        </h1>
        <label for="key">Admin key</label>
        <input
          ref={field}
          id="key"
          name="key"
          type="password"
          autocomplete="off"
          required
          aria-describedby="key-help"
          aria-invalid={error !== null}
        />
        <p id="key-help" class="muted">
          The one of <code>server.admin_key</code>. Keys of tenants do not open it.
        </p>
        <p class="bad" role="alert">
          {error && (
            <>
              <span aria-hidden="true">✖</span> {error}
            </>
          )}
        </p>
        <button type="submit" class="primary" disabled={busy}>
          Log in
        </button>
      </form>
    </main>
  );
}
