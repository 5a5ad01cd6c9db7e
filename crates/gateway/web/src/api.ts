// The endpoints of the gateway, as a page may ask them.

import { parse } from "./text";

/** What a request came to that the gateway did not do. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export interface Session {
  token: string;
  ends: number;
  needs_key: boolean;
}

export interface NoSession {
  needs_key: boolean;
  message: string;
}

let token = "";

async function send(method: string, path: string, body?: unknown): Promise<Response> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && token) headers["x-steadfast-token"] = token;
  return fetch(path, {
    method,
    headers,
    body: body === undefined ? null : JSON.stringify(body),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
  });
}

/** The session that there is, or one that can be had without a key; otherwise what is missing. */
export async function session(): Promise<Session | NoSession> {
  const known = await send("GET", "/dashboard/session");
  const answer = parse<Session | NoSession>(await known.text());
  if (isSession(answer)) return keep(answer);
  return answer.needs_key ? (answer as NoSession) : login(undefined);
}

export async function login(key: string | undefined): Promise<Session | NoSession> {
  const answer = await send("POST", "/dashboard/session", key === undefined ? {} : { key });
  const body = parse<Session | NoSession>(await answer.text());
  return answer.ok ? keep(body as Session) : (body as NoSession);
}

function keep(session: Session): Session {
  token = session.token;
  return session;
}

export async function logout(): Promise<void> {
  await send("DELETE", "/dashboard/session");
  token = "";
}

/** What is at `path`. */
export async function get<T>(path: string): Promise<T> {
  const answer = await send("GET", path);
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, text.trim());
  return parse<T>(text);
}

/** Has the gateway do something; what it says about that. */
export async function post(path: string, body?: unknown): Promise<string> {
  const answer = await send("POST", path, body);
  const text = parse<string>(JSON.stringify((await answer.text()).trim()));
  if (!answer.ok) throw new Refused(answer.status, text);
  return text;
}

export function isSession(one: Session | NoSession): one is Session {
  return "token" in one;
}
