// What the dashboard has to do, in the order in which it is done: each check goes on where the one before has ended.

import { strict as assert } from "node:assert";
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { ADMIN, HOSTILE, TENANTS, admin, ask, load, stop, until } from "./world.mjs";

const AXE = await readFile(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** A fault of everything that is asked. */
const always = (fault) => ({ fault });

/** HTML and an override of the writing direction, as a caller's model and a provider's error. */
const MODEL = `<img src=x onerror=alert(2)>\u202egnp.exe`;
const ERROR = `</bdi><script>alert(3)</script><img src=x onerror=alert(4)>\u202edoof`;

/** What is seen instead of the override. */
const SEEN = "\\u{202e}";

const needs = (page) => page.locator(".needs");

async function login(page, key = ADMIN) {
  await page.getByLabel("Admin key").fill(key);
  await page.keyboard.press("Enter");
}

/** Opens the actions of a target, and presses one; it asks before it does it. */
async function act(page, target, verb) {
  await page.getByRole("button", { name: `Actions for ${target}`, exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: `${verb} …`, exact: true }).click();
  await confirm(page, verb);
}

async function confirm(page, verb) {
  const dialog = page.getByRole("dialog");
  const text = (await dialog.locator("p").first().innerText()).trim();
  assert.match(text, /^.{20,}\.$/s, "it says what it will do");
  const answered = page.waitForResponse((answer) => answer.request().method() === "POST");
  await dialog.getByRole("button", { name: verb, exact: typeof verb === "string" }).click();
  assert.equal((await answered).status(), 200);
  await page.locator(".toast").filter({ hasText: "Done" }).waitFor();
}

/** A history with so many calls of a tool. */
function calls(times) {
  return Array.from({ length: times }, (_, n) => [
    {
      role: "assistant",
      content: null,
      tool_calls: [
        { id: `c${n}`, type: "function", function: { name: "read", arguments: JSON.stringify({ path: `file ${n}` }) } },
      ],
    },
    { role: "tool", tool_call_id: `c${n}`, content: `What file ${n} says.` },
  ]).flat();
}

async function health(world, name) {
  const status = await admin(world.gateway, "/admin/status");
  return status.targets.find((one) => one.target === name);
}

async function breakerOf(world, target) {
  const status = await admin(world.gateway, "/admin/status");
  return status.breakers.find((one) => one.target === target)?.state;
}

/** What axe has against the page as it is. */
async function axe(page, what) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(AXE);
  const found = await page.evaluate(async () => {
    const result = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return result.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).slice(0, 4)}`);
  });
  assert.deepEqual(found, [], `axe: ${what}`);
}

export const CHECKS = [
  [
    "a wrong key and a tenant's key are refused, the admin key is let in",
    async (world) => {
      const page = world.page1;
      await page.goto(`${world.gateway.url}/dashboard`);
      await axe(page, "login");
      for (const key of ["wrong", TENANTS.acme]) {
        await login(page, key);
        await page.getByRole("alert").filter({ hasText: "not the admin key" }).waitFor();
      }
      await login(page);
      await page.locator("table.targets").waitFor();
      const [cookie] = await page.own.cookies();
      assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/"]);
      assert.equal(await page.evaluate(() => document.cookie), "", "no script sees it");
      const kept = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage]));
      assert.ok(!kept.includes(ADMIN), "the key is not kept");
    },
  ],
  [
    "while all is well nothing needs anybody",
    async (world) => {
      world.stopLoad = load(() => world.gateway);
      await needs(world.page1).getByText("Nothing needs you").waitFor();
      await world.page1.locator(".chip.good").filter({ hasText: "openai" }).waitFor();
      // A picture has something to show then.
      await sleep(world.pictures ? 75_000 : 5_000);
    },
  ],
  [
    "an outage is watched from red to green",
    async (world) => {
      const page = world.page1;
      await world.faults("openai", always({ error: "overloaded" }));
      await page.locator(".targets tr").filter({ hasText: "openai" }).getByText(/resting/).first().waitFor();
      await page.locator(".requests").getByText("recovered").first().waitFor();
      await sleep(world.pictures ? 15_000 : 3_000);
      await world.faults("openai", always({ error: "auth" }));
      await needs(page).getByText("refuses our key").waitFor({ timeout: 40_000 });
      await needs(page).getByText("Act").first().waitFor();
      await world.faults("openai");
      await sleep(world.pictures ? 20_000 : 2_000);
      await world.shots();
      await needs(page).getByRole("button", { name: "Reset the rest" }).first().click();
      await confirm(page, "Reset the rest");
      await needs(page).getByText("Nothing needs you").waitFor();
      await page.locator(".chip.good").filter({ hasText: "openai" }).waitFor({ timeout: 60_000 });
    },
  ],
  [
    "a target is taken out, and another tab sees it; undone, it is back",
    async (world) => {
      const page = world.page1;
      const other = (world.page2 = await world.page({}, page.own));
      await other.goto(`${world.gateway.url}/dashboard`);
      await other.locator(".chip").filter({ hasText: "openai" }).waitFor();
      await act(page, "openai", "Take out");
      assert.equal((await health(world, "openai")).out, true);
      await other.locator(".chip").filter({ hasText: "openai: taken out" }).waitFor();
      await needs(page).getByText("openai was taken out by an operator").waitFor();
      const before = (await admin(world.gateway, "/admin/requests?target=openai&limit=1")).requests[0].at;
      await sleep(1_500);
      const after = (await admin(world.gateway, "/admin/requests?target=openai&limit=1")).requests[0].at;
      assert.ok(Date.parse(after) - Date.parse(before) < 1_000, "nobody asks it");
      await page.getByRole("button", { name: "Undo" }).click();
      await confirm(page, "Put back");
      assert.equal((await health(world, "openai")).out, false);
      await other.locator(".chip.good").filter({ hasText: "openai" }).waitFor();
      await act(other, "anthropic", "Take out");
      await needs(page).getByRole("button", { name: "Put back" }).click();
      await confirm(page, "Put back");
      assert.equal((await health(world, "anthropic")).out, false);
      await act(page, "openai", "Reset the rest");
    },
  ],
  [
    "a breaker is opened, closed and reset",
    async (world) => {
      const page = world.page1;
      const status = await admin(world.gateway, "/admin/status");
      const target = status.breakers.find((one) => one.target.startsWith("openai/gpt-4o")).target;
      await page.getByRole("button", { name: /models and keys of openai/ }).click();
      await act(page, target, "Open the breaker");
      assert.equal(await breakerOf(world, target), "forced_open");
      await needs(page).getByText("keeps the breaker").waitFor();
      await page.getByRole("button", { name: "Undo" }).click();
      await confirm(page, "Reset the breaker");
      assert.equal(await breakerOf(world, target), "closed");
      await act(page, target, "Close the breaker");
      assert.equal(await breakerOf(world, target), "forced_closed");
      await act(page, target, "Reset the breaker");
      assert.equal(await breakerOf(world, target), "closed");
    },
  ],
  [
    "the configuration is read again, and what is wrong with it needs somebody",
    async (world) => {
      const page = world.page1;
      const reload = async () => {
        await page.getByRole("button", { name: "Reload" }).click();
        await page.getByRole("dialog").getByRole("button", { name: "Reload", exact: true }).click();
      };
      const { readFile: read, writeFile: write } = await import("node:fs/promises");
      const text = await read(world.gateway.file, "utf8");
      await write(world.gateway.file, `nonsense = 1\n${text}`);
      await reload();
      await page.locator(".toast").filter({ hasText: "Not done" }).waitFor();
      await needs(page).getByText("could not be read again").waitFor();
      await write(world.gateway.file, text);
      await reload();
      await page.locator(".toast").filter({ hasText: "Done" }).waitFor();
      await needs(page).getByText("could not be read again").waitFor({ state: "detached" });
      assert.equal((await admin(world.gateway, "/admin/status")).reload.times, 1);
    },
  ],
  [
    "what was learned of a model is forgotten, and a stopped task goes on",
    async (world) => {
      const page = world.page1;
      await world.faults("gemini", always({ window: { tokens: 3_000 } }));
      await until("a window is learned", async () => {
        await ask(world.gateway, { model: "gemini-2.5-flash", more: "The sea was calm. ".repeat(2_000) });
        return (await admin(world.gateway, "/admin/status")).compaction.learned.length > 0;
      });
      await world.faults("gemini");
      const learned = page.locator("#learned");
      await learned.getByRole("button", { name: "Forget it …" }).first().click();
      await confirm(page, "Forget it");
      await ask(world.gateway, { task: "the-night-watch", history: calls(4) });
      await ask(world.gateway, { task: "the-night-watch" });
      const tasks = page.locator("#tasks");
      await tasks.getByText("the-night-watch").waitFor();
      await tasks.getByRole("button", { name: "Let it go on …" }).click();
      await confirm(page, "Let it go on");
      const task = async () => {
        const { guard } = await admin(world.gateway, "/admin/status");
        return guard.tasks.find((one) => one.task === "the-night-watch");
      };
      await until("the stop is lifted", async () => !(await task())?.stopped);
    },
  ],
  [
    "held requests are decided, each in its way",
    async (world) => {
      const page = world.page1;
      await world.stopLoad();
      const all = ["openai", "anthropic", "gemini"];
      const held = page.locator("#held");
      const reset = async () => {
        for (const one of all) await admin(world.gateway, `/admin/targets/reset?target=${one}`, "POST");
      };
      const decide = async (press, expected) => {
        for (const one of all) await world.faults(one, always({ error: "auth" }));
        const asked = ask(world.gateway, { timeout: 60_000, stream: false });
        await needs(page).getByText(/held for somebody's decision/).waitFor({ timeout: 40_000 });
        await held.getByText("left").first().waitFor();
        for (const one of all) await world.faults(one);
        await press();
        const answer = await asked;
        assert.equal(answer.status === 200, expected, answer.text);
        await held.getByText("No request waits").waitFor();
        await reset();
        return answer;
      };
      const press = (name, verb) => async () => {
        await held.getByRole("button", { name }).first().click();
        await confirm(page, verb);
      };
      await decide(press("Refuse …", "Refuse"), false);
      await decide(press(/^Try .*anthropic.* …$/, /^Try /), true);
      await decide(press(/^Reset .* …$/, /^Reset /), true);
      const answer = await decide(async () => {
        await held.getByLabel(/^Answer to request/).fill("The lamp is lit.");
        await held.getByRole("button", { name: "Answer …" }).click();
        await confirm(page, "Answer");
      }, true);
      assert.match(answer.text, /The lamp is lit\./);
      const other = await decide(async () => {
        await reset();
        await held.getByLabel(/^Model for request/).fill("gemini-2.5-flash");
        await held.getByRole("button", { name: "Try model …" }).click();
        await confirm(page, "Try model");
      }, true);
      assert.match(other.text, /gemini-2\.5-flash/);
      await decide(async () => {
        await reset();
        await press("Try again …", "Try again")();
      }, true);
      world.stopLoad = load(() => world.gateway);
    },
  ],
  [
    "dead letters are sent again, conversations and runs are listed, tenants' spend is shown",
    async (world) => {
      const page = world.page1;
      const letters = page.locator("#letters");
      await letters.getByText("report-17").waitFor();
      await letters.getByRole("button", { name: "Send again …" }).first().click();
      await confirm(page, "Send again");
      await letters.getByRole("button", { name: "Send all again …" }).click();
      await confirm(page, "Send again");
      await page.locator("#sessions").getByText("agent-7").waitFor();
      const runs = page.locator("#runs tbody tr");
      assert.equal(await runs.count(), 3);
      // What has not ended first, then the newest.
      const texts = await runs.allInnerTexts();
      assert.deepEqual(texts.map((text) => /run-\d/.exec(text)[0]), ["run-3", "run-2", "run-1"]);
      assert.match(texts[1], /watchdog timeout[\s\S]*writer[\s\S]*10 min[\s\S]*<script>alert\(5\)<\/script>\\u\{202e\}/);
      await page.locator("#spend").getByText("acme", { exact: true }).waitFor();
    },
  ],
  [
    "requests are filtered, and one opens as a waterfall",
    async (world) => {
      const page = world.page1;
      await world.faults("openai", { fault: { error: "overloaded" }, probability: 0.5 });
      await sleep(4_000);
      await world.faults("openai");
      await page.getByLabel("Outcome").selectOption("recovered");
      await page.getByLabel("Tenant", { exact: true }).fill("acme");
      const rows = page.locator(".requests tbody tr");
      await until("only what was recovered for acme is listed", async () => {
        const texts = await rows.allInnerTexts();
        return texts.length > 0 && texts.every((text) => text.includes("recovered") && text.includes("acme"));
      });
      const opener = rows.first().getByRole("button");
      await opener.focus();
      await page.keyboard.press("Enter");
      const dialog = page.getByRole("dialog");
      await dialog.getByText("What happened").waitFor();
      const story = await admin(world.gateway, `/admin/requests/${await dialog.locator("h2").innerText()}`);
      assert.equal(await dialog.locator(".attempt").count(), story.attempts.length);
      assert.equal(await dialog.locator(".step").count(), story.steps.length);
      assert.ok(story.attempts.length > 1 && story.steps.length > 0);
      await axe(page, "a story");
      await world.shot(page, "story");
      await page.keyboard.press("Escape");
      await dialog.waitFor({ state: "detached" });
      await page.getByLabel("Reason").fill("nothing is so");
      await page.getByText("No request is like that.").waitFor();
      await page.getByRole("button", { name: "Clear" }).click();
      // What is held is what is there.
      await rows.first().waitFor();
      await page.getByRole("button", { name: "Hold still" }).click();
      const still = await rows.first().innerText();
      await sleep(1_500);
      assert.equal(await rows.first().innerText(), still);
      await page.getByRole("button", { name: "Go on" }).click();
    },
  ],
  [
    "charts have their spans, and a table instead",
    async (world) => {
      const page = world.page1;
      for (const name of ["6 hours", "24 hours", "15 min"]) {
        await page.getByRole("button", { name, exact: true }).click();
        await page.locator(".charts figure").nth(5).waitFor();
      }
      const chart = page.getByRole("img", { name: /^Calls\. \d/ });
      assert.match(await chart.getAttribute("aria-label"), /recovered, .* lost/);
      await page.getByRole("button", { name: "Table", exact: true }).click();
      await page.getByRole("region", { name: "Intervals" }).getByRole("row").nth(2).waitFor();
      await axe(page, "the table of intervals");
      await page.getByRole("button", { name: "Table", exact: true }).click();
    },
  ],
  [
    "what others write is text, and nothing else",
    async (world) => {
      const page = world.page1;
      const body = JSON.stringify({ error: { message: ERROR, type: ERROR, code: ERROR } });
      await world.faults("openai", always({ status: { status: 400, body } }));
      await ask(world.gateway, { model: MODEL, tenant: "hostile" });
      await world.faults("openai", always({ status: { status: 503, body } }));
      for (let n = 0; n < 4; n += 1) await ask(world.gateway, { model: MODEL, tenant: "hostile" });
      await page.locator(".targets").getByText("<script>alert(3)").first().waitFor();
      const targets = await page.locator(".targets").innerText();
      assert.ok(targets.includes(SEEN) && !targets.includes("\u202e"), "an override is seen as its number");
      const list = page.locator(".requests");
      await list.getByText("<img src=x onerror=alert(2)>").first().waitFor();
      await page.getByLabel("Tenant", { exact: true }).fill(HOSTILE.replace("\u202e", SEEN));
      await list.getByText("<img src=x onerror=alert(1)>").first().waitFor();
      await page.getByLabel("Model", { exact: true }).fill(MODEL.replace("\u202e", SEEN));
      const filtered = async () => (await list.locator("tbody tr").allInnerTexts()).every((row) => row.includes("alert(2)"));
      await until("only the hostile model is listed", filtered);
      await list.getByRole("button").first().click();
      await page.getByRole("dialog").getByText("<img src=x onerror=alert(2)>").first().waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("button", { name: "Clear" }).click();
      await page.locator("#spend").getByText("<img src=x").first().waitFor();
      assert.equal(await page.locator("img, script:not([src]), iframe").count(), 0);
      const text = await page.evaluate(() => document.body.innerText);
      assert.ok(!text.includes("\u202e"));
      await world.faults("openai");
    },
  ],
  [
    "axe has nothing against it, in light and dark, on a telephone and a screen",
    async (world) => {
      for (const colorScheme of ["light", "dark"])
        for (const width of [380, 1440]) {
          const page = await world.page({ viewport: { width, height: 900 }, colorScheme });
          await page.goto(`${world.gateway.url}/dashboard`);
          await login(page);
          await page.locator(".requests tbody tr").nth(3).waitFor();
          await page.locator(".charts figure").nth(5).waitFor();
          const what = `${colorScheme}, ${width}`;
          await axe(page, what);
          const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(overflow <= 0, `${what}: ${overflow} px too wide`);
          await page.getByRole("button", { name: "Actions for openai", exact: true }).click();
          await page.getByRole("dialog").getByRole("button", { name: /^Take out/ }).waitFor();
          await axe(page, `${what}, the actions of a target`);
          await page.getByRole("dialog").getByRole("button", { name: /^Take out/ }).click();
          await axe(page, `${what}, a confirmation`);
          await page.keyboard.press("Escape");
          assert.deepEqual(page.wrong, []);
          await page.own.close();
        }
    },
  ],
  [
    "everything can be reached by the keyboard",
    async (world) => {
      const page = await world.page({ reducedMotion: "reduce" });
      await page.goto(`${world.gateway.url}/dashboard`);
      await page.locator("#key:focus").waitFor();
      await page.keyboard.type(ADMIN);
      await page.keyboard.press("Enter");
      await page.locator(".requests tbody tr").first().waitFor();
      const reached = new Set();
      for (let n = 0; n < 60; n += 1) {
        await page.keyboard.press("Tab");
        reached.add(
          await page.evaluate(() => {
            const now = document.activeElement;
            const style = now ? getComputedStyle(now) : null;
            const name = now?.getAttribute("aria-label") ?? now?.textContent?.trim().slice(0, 30);
            return `${style && style.outlineStyle !== "none" ? "" : "NOT SEEN: "}${name}`;
          }),
        );
      }
      const names = [...reached];
      assert.ok(names.includes("To the content") && names.includes("Reload"), names.join(", "));
      assert.ok(names.includes("Actions for openai") && names.includes("6 hours"), names.join(", "));
      assert.deepEqual(names.filter((name) => name.startsWith("NOT SEEN") && !name.endsWith("null")), []);
      await page.own.close();
    },
  ],
  [
    "a connection over which nothing comes any more is given up",
    async (world) => {
      const page = world.page1;
      const again = page.waitForRequest((request) => request.url().endsWith("/dashboard/session"), { timeout: 20_000 });
      world.gateway.child.kill("SIGSTOP");
      await page.locator(".connection").getByText(/shown is \d+ s old/).waitFor();
      await again;
      world.gateway.child.kill("SIGCONT");
      await page.locator(".connection").getByText("live").waitFor();
    },
  ],
  [
    "the gateway stops at once although pages are open, and they go on when it is back",
    async (world) => {
      const pages = [world.page1, world.page2];
      await world.stopLoad();
      const began = Date.now();
      assert.equal(await stop(world.gateway), 0);
      assert.ok(Date.now() - began < 5_000, "it does not wait for open pages");
      for (const page of pages) await page.locator(".connection").getByText(/shown is \d+ s old/).waitFor();
      world.gateway = await world.again(world.gateway);
      world.stopLoad = load(() => world.gateway);
      // By the same session: the key is the same.
      for (const page of pages) await page.locator(".connection").getByText("live").waitFor();
      await until("what is shown is of the new one", async () => {
        const shown = await pages[0].locator("footer").innerText();
        return Number(/(\d[\d,]*) requests/.exec(shown)[1].replace(",", "")) < 500;
      });
      // Killed in the middle of it as well.
      await stop(world.gateway, "SIGKILL");
      await pages[0].locator(".connection").getByText(/shown is/).waitFor();
      world.gateway = await world.again(world.gateway);
      for (const page of pages) await page.locator(".connection").getByText("live").waitFor();
      await act(pages[0], "openai", "Reset the rest");
    },
  ],
  [
    "whoever has logged out sees nothing more",
    async (world) => {
      const page = world.page1;
      await page.getByRole("button", { name: "Log out" }).click();
      await page.getByLabel("Admin key").waitFor();
      assert.equal(await page.locator("table").count(), 0);
      assert.deepEqual(await page.own.cookies(), []);
      const status = (path) => page.evaluate(async (path) => (await fetch(path)).status, path);
      assert.deepEqual([await status("/admin/status"), await status("/dashboard/feed")], [401, 401]);
      // The other tab finds out with its next connection.
      await login(page);
      await page.locator("table.targets").waitFor();
    },
  ],
  [
    "without an admin key this machine needs none, also after a restart",
    async (world) => {
      let open = await world.serve("open", false);
      const page = await world.page();
      await page.goto(`${open.url}/dashboard`);
      await page.locator("table.targets").waitFor();
      assert.equal(await page.getByRole("button", { name: "Log out" }).count(), 0);
      await ask(open);
      await act(page, "openai", "Take out");
      await stop(open);
      await page.locator(".connection").getByText(/shown is/).waitFor();
      open = await world.again(open);
      await page.locator(".connection").getByText("live").waitFor();
      await page.locator(".chip").filter({ hasText: "openai: not asked yet" }).waitFor();
      await act(page, "openai", "Take out");
      assert.deepEqual(page.wrong, []);
      await page.own.close();
      await stop(open);
    },
  ],
  [
    "gateways that share a store see each other, and what the others have found",
    async (world) => {
      const store = await world.store();
      const state = `[state]\nurl = "${store.url}"\n`;
      const one = await world.serve("fleet-one", false, "127.0.0.1:0", state);
      const other = await world.serve("fleet-other", false, "127.0.0.1:0", state);
      const page = await world.page();
      await page.goto(`${other.url}/dashboard`);
      const fleet = page.locator("#fleet");
      const gateways = fleet.getByRole("region", { name: "Gateways", exact: true }).locator("tbody tr");
      await until("both are listed", async () => (await gateways.count()) === 2);
      assert.equal(await gateways.getByText("(this one)").count(), 1);
      await world.faults("openai", { fault: { error: "auth" }, probability: 1 });
      await ask(one);
      await world.faults("openai");
      const found = fleet.getByRole("region", { name: "What gateways have found" });
      await found.getByText(/^openai/).waitFor();
      assert.match(await found.innerText(), /rests[\s\S]*openai[\s\S]*\(1 of 2\)/);
      await axe(page, "a fleet");
      await stop(store);
      await fleet.getByText(/can not be reached/).waitFor();
      await page.locator(".needs").getByText(/can not be reached/).waitFor();
      assert.deepEqual(page.wrong, []);
      await page.own.close();
      await stop(one);
      await stop(other);
    },
  ],
  [
    "no dialog, no error, no request to elsewhere, no violation of the policy",
    async (world) => {
      // A page of a gateway that is stopped reports that its requests fail, and nothing else.
      assert.deepEqual([...world.page1.wrong, ...world.page2.wrong], []);
    },
  ],
];
