// soak.mjs BINARY FOLDER [MINUTES]: two dashboards open under 5,000 calls a second, or as many as the machine can: the memory
// of the gateway and of the pages stays where it is, and the pages answer to clicks.

import { strict as assert } from "node:assert";
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { callers, cpu } from "./callers.mjs";
import { World, stop } from "./world.mjs";

const [binary, folder, minutes = "30"] = process.argv.slice(2);

/** Calls a second, and under way at once. */
const [RATE, AT_ONCE] = [5_000, 64];

/** Samples, spread over the time. */
const SAMPLES = 30;

/** How much more the last third may have than the second: a tenth, and what comes and goes, in MiB. */
const [GROWTH, SLACK] = [1.1, 8];

/** The longest that a page may take to show what a click asks for, at the median, in milliseconds: a second is when somebody
 * loses the thread. */
const ANSWERS = 1_000;

const world = new World();
await world.start(binary, folder);
const gateway = await world.serve("soak", false);
const pages = [];
for (let n = 0; n < 2; n += 1) {
  const page = await world.page();
  await page.goto(`${gateway.url}/dashboard`);
  await page.locator("table.targets").waitFor();
  pages.push({ page, cdp: await page.own.newCDPSession(page) });
}
const load = callers(gateway, AT_ONCE, RATE);

const mib = (bytes) => bytes / 1_048_576;

async function resident() {
  const status = await readFile(`/proc/${gateway.child.pid}/status`, "utf8");
  return Number(/VmRSS:\s+(\d+) kB/.exec(status)[1]) / 1_024;
}

/** What a page holds, and how long a click on another span takes to be seen. */
async function look({ page, cdp }, n) {
  await cdp.send("HeapProfiler.collectGarbage");
  const { usedSize } = await cdp.send("Runtime.getHeapUsage");
  const { nodes } = await cdp.send("Memory.getDOMCounters");
  const began = performance.now();
  await page.getByRole("button", { name: n % 2 === 0 ? "6 hours" : "15 min", exact: true }).click();
  await page.locator(".charts figure").nth(5).waitFor();
  return { heap: mib(usedSize), nodes, answer: performance.now() - began };
}

const samples = [];
const every = (Number(minutes) * 60_000) / SAMPLES;
const began = performance.now();
let [asked, used] = [load.state.asked, await cpu(gateway)];
console.log("minute  calls/s  gateway %  gateway MiB  page MiB  page nodes  a click ms");
for (let n = 0; n < SAMPLES; n += 1) {
  await sleep(Math.max(0, began + (n + 1) * every - performance.now()));
  const [askedNow, usedNow, memory] = [load.state.asked, await cpu(gateway), await resident()];
  const looks = [];
  for (const one of pages) looks.push(await look(one, n));
  const most = (name) => Math.max(...looks.map((one) => one[name]));
  const seconds = every / 1_000;
  const sample = {
    rate: (askedNow - asked) / seconds,
    share: ((usedNow - used) / seconds) * 100,
    memory,
    heap: most("heap"),
    nodes: most("nodes"),
    answer: most("answer"),
  };
  [asked, used] = [askedNow, usedNow];
  samples.push(sample);
  const { rate, share, heap, nodes, answer } = sample;
  const cells = [((n + 1) * every) / 60_000, rate, share, memory, heap, nodes, answer];
  const widths = [6, 7, 9, 11, 8, 10, 10];
  console.log(cells.map((cell, at) => cell.toFixed(at === 0 || at === 4 ? 1 : 0).padStart(widths[at])).join("  "));
}
await load.stop();

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
const third = (name, at, of = median) => of(samples.slice((at * SAMPLES) / 3, ((at + 1) * SAMPLES) / 3).map((one) => one[name]));
for (const name of ["memory", "heap"]) {
  const [before, after] = [third(name, 1), third(name, 2)];
  assert.ok(after <= before * GROWTH + SLACK, `${name} grows: ${before.toFixed(1)} MiB, then ${after.toFixed(1)} MiB`);
}
// Nodes that are not collected yet come and go: the most of them stays.
const most = (values) => Math.max(...values);
const nodes = [1, 2].map((at) => third("nodes", at, most));
assert.ok(nodes[1] <= nodes[0] * GROWTH + 1_000, `the pages have more and more nodes: ${nodes.join(", then ")}`);
assert.ok(median(samples.map((one) => one.answer)) <= ANSWERS, "the pages do not answer");
assert.equal(load.state.failed, 0, "calls failed");
for (const { page } of pages) assert.deepEqual(page.wrong, []);
console.log(`${load.state.asked} calls in ${minutes} min, none failed; nothing has grown`);
await world.browser.close();
await stop(gateway);
process.exit(0);
