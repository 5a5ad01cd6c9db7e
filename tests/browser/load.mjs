// load.mjs BINARY FOLDER: what two open dashboards cost a gateway under load, in CPU time.
//
// The callers are this process, which asks as fast as it can; what the gateway does for the pages is the difference
// between runs that alternate, with the pages and without them.

import { readFile, readdir } from "node:fs/promises";
import http from "node:http";
import os from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { World, admin, stop } from "./world.mjs";

const [binary, folder] = process.argv.slice(2);

/** Calls under way at once, seconds of each measurement, and how often each is made. */
const [AT_ONCE, SECONDS, TIMES] = [64, 4, 10];

const world = new World();
await world.start(binary, folder);
const gateway = await world.serve("load", false);
const agent = new http.Agent({ keepAlive: true, maxSockets: AT_ONCE });

/** Seconds of a processor that the gateway's threads have had; those of one that has ended are small. */
async function cpu() {
  const folder = `/proc/${gateway.child.pid}/task`;
  const times = (await readdir(folder)).map(async (thread) => {
    const stat = await readFile(`${folder}/${thread}/schedstat`, "utf8").catch(() => "0");
    return Number(stat.split(" ")[0]);
  });
  return (await Promise.all(times)).reduce((all, one) => all + one, 0) / 1e9;
}

const body = JSON.stringify({ model: "gpt-4o", max_tokens: 1, messages: [{ role: "user", content: "How is the night?" }] });

function ask() {
  return new Promise((resolve) => {
    const options = { method: "POST", agent, headers: { "content-type": "application/json" } };
    const request = http.request(`${gateway.url}/v1/chat/completions`, options, (answer) => {
      answer.resume();
      answer.on("end", resolve);
    });
    request.on("error", resolve);
    request.end(body);
  });
}

let [asked, over] = [0, false];
const callers = Array.from({ length: AT_ONCE }, async () => {
  while (!over) {
    await ask();
    asked += 1;
  }
});

/** Feeds that are read: how many frames and bytes came, until they are closed. */
function feeds(count) {
  const seen = { frames: 0, bytes: 0 };
  const all = Array.from({ length: count }, () =>
    http.get(`${gateway.url}/dashboard/feed`, (answer) => {
      answer.on("data", (piece) => {
        seen.bytes += piece.length;
        if (piece.includes("\n\n")) seen.frames += 1;
      });
      answer.on("error", () => undefined);
    }),
  );
  for (const one of all) one.on("error", () => undefined);
  return { seen, close: () => all.forEach((one) => one.destroy()) };
}

async function measure(pages) {
  const open = feeds(pages);
  await sleep(500);
  const [began, before, first] = [performance.now(), await cpu(), asked];
  const { frames, bytes } = open.seen;
  await sleep(SECONDS * 1_000);
  const seconds = (performance.now() - began) / 1_000;
  const result = {
    cpu: ((await cpu()) - before) / seconds,
    rate: (asked - first) / seconds,
    frames: (open.seen.frames - frames) / seconds / Math.max(1, pages),
    bytes: (open.seen.bytes - bytes) / Math.max(1, open.seen.frames - frames),
  };
  open.close();
  return result;
}

// Until as many requests are remembered as ever.
while ((await admin(gateway, "/admin/requests?limit=1")).remembered < 10_000) await sleep(200);
const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
const pairs = [];
for (let n = 0; n < TIMES; n += 1) pairs.push([await measure(0), await measure(2)]);
for (const [at, pages] of [[0, 0], [1, 2]]) {
  const of = (name) => median(pairs.map((pair) => pair[at][name]));
  console.log(
    `${pages} pages: ${of("rate").toFixed(0)} calls/s, ${(of("cpu") * 100).toFixed(1)} % of a core` +
      (pages > 0 ? `, ${of("frames").toFixed(1)} frames/s each of ${(of("bytes") / 1_024).toFixed(0)} KiB` : ""),
  );
}
// Of pairs that follow each other: what else the machine does is nearly the same in both.
const perCall = (run) => (run.cpu / run.rate) * 1e6;
const more = pairs.map(([none, two]) => perCall(two) - perCall(none));
const all = more.map((one) => one.toFixed(1)).join(", ");
console.log(`CPU of the gateway a call: ${median(pairs.map(([none]) => perCall(none))).toFixed(1)} µs; with two pages ${median(more).toFixed(1)} µs more (of ${all})`);

// What a frame costs, with nothing else to be done: 10,000 requests remembered, and calls that do not end.
over = true;
await Promise.all(callers);
await world.faults("openai", { fault: "hang" });
const hanging = Array.from({ length: 1_000 }, () => {
  const request = http.request(`${gateway.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-steadfast-timeout-ms": "120000" },
  });
  request.on("error", () => undefined);
  request.end(body);
  return request;
});
await sleep(3_000);
// Something begins and ends, so that there is something to show.
const busy = setInterval(() => void fetch(`${gateway.url}/v1/chat/completions`, { method: "POST", body: "{" }), 200);
const quiet = await measure(0);
const open = await measure(2);
clearInterval(busy);
const cost = open.cpu - quiet.cpu;
const { running, remembered } = await admin(gateway, "/admin/requests?limit=1");
console.log(
  `${remembered} remembered, ${running} under way, ${os.cpus().length} cores: ${open.frames.toFixed(1)} frames/s cost ` +
    `${(cost * 100).toFixed(2)} % of a core, ${((cost / Math.max(open.frames, 0.1)) * 1e3).toFixed(2)} ms a frame for both pages`,
);
for (const one of hanging) one.destroy();
await world.browser.close();
await stop(gateway, "SIGKILL");
process.exit(0);
