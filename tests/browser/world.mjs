// The programs of a run: simulated providers, a gateway before them, callers; and a browser.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { cp, mkdir, rm, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";

// The keys of a run. They open nothing.
export const ADMIN = "browser-tests-admin";
export const TENANTS = { acme: "browser-tests-acme", globex: "browser-tests-globex", hostile: "browser-tests-hostile" };

/** A tenant's name as nobody should have one: it is in the configuration, which its operator writes. */
export const HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe";

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** Longer than anything takes on a busy machine, in milliseconds. */
export const SOON = 20_000;

const children = new Set();
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => process.exit(1));
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
});

/** Starts `binary`, and waits for the line of its output that begins with `ready`. */
async function start(binary, args, env, ready) {
  const child = spawn(binary, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] });
  children.add(child);
  child.on("exit", () => children.delete(child));
  const lines = [];
  for await (const line of createInterface({ input: child.stdout })) {
    lines.push(line);
    if (line.startsWith(ready)) break;
  }
  if (!lines.at(-1)?.startsWith(ready)) throw new Error(`${args[0]} did not start: ${lines.join("\n")}`);
  child.stdout.resume();
  return { child, lines };
}

export async function stop(program, signal = "SIGTERM") {
  if (program.child.exitCode !== null || program.child.signalCode !== null) return program.child.exitCode;
  const over = once(program.child, "exit");
  program.child.kill(signal);
  const [code] = await over;
  return code;
}

function configuration(at, listen, keyed, folder, more) {
  const providers = [
    ["openai", "gpt-*", "gpt-4o"],
    ["anthropic", "claude-*", "claude-sonnet-4-5"],
    ["gemini", "gemini-*", "gemini-2.5-flash"],
  ].map(
    ([name, own, any]) => `
[[providers]]
name = "${name}"
dialect = "${name}"
base_url = "${at[name]}"
credentials = ["env:${name.toUpperCase()}_API_KEY"]
models = { "${own}" = "*", "*" = "${any}" }
`,
  );
  return `
[server]
listen = "${listen}"
auth = "${keyed ? "keys" : "none"}"
${keyed ? 'admin_key = "env:BROWSER_ADMIN"' : ""}
shutdown_s = 20
${keyed ? tenants() : ""}
${providers.join("")}
[failover]
chain = ["openai", "anthropic", "gemini"]
own_vendor_first = true

[spend_limit]
record = true

[escalation]
enabled = true
hold_s = 60

[guard.named]
calls = 2

[cooldown]
overloaded = 8
server_error = 8

[retry]
cap_ms = 500

[observe]
letters = "${folder}/letters"
sessions = "${folder}/sessions"
runs = "${folder}/runs"

${more}`;
}

function tenants() {
  return `
[[tenants]]
name = "acme"
keys = ["env:BROWSER_ACME"]

[[tenants]]
name = "globex"
keys = ["env:BROWSER_GLOBEX"]

[[tenants]]
name = ${JSON.stringify(HOSTILE)}
keys = ["env:BROWSER_HOSTILE"]
`;
}

/** Everything that a run needs. */
export class World {
  async start(binary, folder) {
    this.binary = binary;
    this.folder = folder;
    await mkdir(folder, { recursive: true });
    for (const kept of ["letters", "sessions", "runs"]) {
      await rm(`${folder}/${kept}`, { recursive: true, force: true });
      await cp(new URL(`kept/${kept}`, import.meta.url), `${folder}/${kept}`, { recursive: true });
    }
    const sim = await start(
      binary,
      ["sim", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"],
      {},
      "any key is accepted",
    );
    this.sim = Object.fromEntries(sim.lines.slice(0, -1).map((line) => line.split(/\s+/, 2)));
    this.browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS });
  }

  /** A gateway of its own; `keyed` is one with an admin key and tenants. */
  async serve(name, keyed, listen = "127.0.0.1:0", more = "") {
    const file = `${this.folder}/${name}.toml`;
    await writeFile(file, configuration(this.sim, listen, keyed, this.folder, more));
    const env = {
      BROWSER_ADMIN: ADMIN,
      BROWSER_ACME: TENANTS.acme,
      BROWSER_GLOBEX: TENANTS.globex,
      BROWSER_HOSTILE: TENANTS.hostile,
      OPENAI_API_KEY: "browser-tests-openai",
      ANTHROPIC_API_KEY: "browser-tests-anthropic",
      GEMINI_API_KEY: "browser-tests-gemini",
      RUST_LOG: "error",
    };
    const program = await start(this.binary, ["serve", "--config", file], env, "steadfast serves on");
    const url = program.lines.at(-1).split(" ").at(-1);
    return { ...program, url, file, name, keyed };
  }

  /** A store by which gateways share what they know. */
  async store() {
    const port = await new Promise((found) => {
      const server = createServer().listen(0, "127.0.0.1", () => {
        const { port } = server.address();
        server.close(() => found(port));
      });
    });
    const args = ["--port", `${port}`, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    const child = spawn("redis-server", args, { stdio: "ignore" });
    children.add(child);
    child.on("exit", () => children.delete(child));
    const answers = () =>
      new Promise((found) => {
        const socket = connect(port, "127.0.0.1", () => found(true));
        socket.on("error", () => found(false)).on("connect", () => socket.end());
      });
    const until = Date.now() + SOON;
    while (!(await answers())) {
      if (Date.now() > until) throw new Error("redis-server does not listen");
      await sleep(50);
    }
    return { child, url: `redis://127.0.0.1:${port}` };
  }

  /** The same again, at its address. */
  async again(gateway) {
    return this.serve(gateway.name, gateway.keyed, new URL(gateway.url).host);
  }

  /** What a provider does wrong from now on. */
  async faults(provider, ...rules) {
    const answer = await fetch(`${this.sim.control}/${provider}/faults`, {
      method: "PUT",
      body: JSON.stringify({ rules }),
    });
    if (!answer.ok) throw new Error(await answer.text());
  }

  /** A context of the browser, and a page in it that notes whatever should not happen. */
  async page(options = {}, context = undefined) {
    const own = context ?? (await this.browser.newContext({ viewport: { width: 1440, height: 900 }, ...options }));
    const page = await own.newPage();
    page.setDefaultTimeout(SOON);
    const wrong = [];
    page.on("dialog", (dialog) => {
      wrong.push(`a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("pageerror", (error) => wrong.push(`an error: ${error.message}`));
    page.on("request", (request) => {
      if (!request.url().startsWith(this.origin ?? "http://127.0.0.1:") && !request.url().startsWith("data:"))
        wrong.push(`a request to ${request.url()}`);
    });
    await page.exposeFunction("violated", (what) => wrong.push(`a violation: ${what}`));
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) =>
        globalThis.violated(`${event.violatedDirective} ${event.blockedURI}`),
      );
    });
    return Object.assign(page, { wrong, own });
  }
}

let number = 0;

/** Asks for something; no two questions are the same: what fails for one prompt alone says little of a provider. */
export async function ask(gateway, { model = "gpt-4o", tenant = "acme", stream, task, timeout = 8_000, more = "", history = [] } = {}) {
  number += 1;
  const headers = { "content-type": "application/json", "x-steadfast-timeout-ms": String(timeout) };
  if (gateway.keyed) headers.authorization = `Bearer ${TENANTS[tenant]}`;
  if (task) headers["x-steadfast-task"] = task;
  const body = {
    model,
    stream: stream ?? number % 2 === 0,
    messages: [{ role: "user", content: `How was night ${number} at the lighthouse? ${more}` }, ...history],
  };
  const answer = await fetch(`${gateway.url}/v1/chat/completions`, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
  });
  return { status: answer.status, id: answer.headers.get("x-steadfast-request-id") ?? answer.headers.get("x-request-id"), text: await answer.text() };
}

const MODELS = ["gpt-4o", "gpt-4o", "gpt-4o-mini", "claude-sonnet-4-5", "gemini-2.5-flash"];

/** Callers that ask until stopped. */
export function load(gateway, every = 60) {
  let over = false;
  const running = (async () => {
    for (let n = 0; !over; n += 1) {
      const tenant = n % 3 === 0 ? "globex" : "acme";
      // In an outage some fail.
      ask(gateway(), { model: MODELS[n % MODELS.length], tenant }).catch(() => undefined);
      await sleep(every);
    }
  })();
  return async () => {
    over = true;
    await running;
  };
}

/** What the gateway itself answers to an operator. */
export async function admin(gateway, path, method = "GET") {
  const headers = gateway.keyed ? { authorization: `Bearer ${ADMIN}` } : {};
  const answer = await fetch(gateway.url + path, { method, headers });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`);
  return text.startsWith("{") ? JSON.parse(text) : text;
}

/** Waits until `holds` is true. */
export async function until(what, holds, patience = SOON) {
  const end = Date.now() + patience;
  let error;
  while (Date.now() < end) {
    try {
      if (await holds()) return;
    } catch (why) {
      error = why;
    }
    await sleep(100);
  }
  throw new Error(`not within ${patience / 1_000} s: ${what}${error ? ` (${error.message})` : ""}`);
}
