// load.mjs BINARY FOLDER: what two open dashboards cost a gateway under load, in CPU time.
//
// The callers are this process, which asks as fast as it can; what the gateway does for the pages is the difference
// between runs that alternate, with the pages and without them.

import http from "node:http";
import os from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { QUESTION, callers, cpu } from "./callers.mjs";
import { World, admin, stop } from "./world.mjs";

const [binary, folder] = process.argv.slice(2);

/** Calls under way at once, seconds of each measurement, and how often each is made. */
const [AT_ONCE, SECONDS, TIMES] = [64, 4, 10];

const world = new World();
await world.start(binary, folder);
const gateway = await world.serve("load", false);
const load = callers(gateway, AT_ONCE);

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
  const [began, before, first] = [performance.now(), await cpu(gateway), load.state.asked];
  const { frames, bytes } = open.seen;
  await sleep(SECONDS * 1_000);
  const seconds = (performance.now() - began) / 1_000;
  const result = {
    cpu: ((await cpu(gateway)) - before) / seconds,
    rate: (load.state.asked - first) / seconds,
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
await load.stop();
await world.faults("openai", { fault: "hang" });
const hanging = Array.from({ length: 1_000 }, () => {
  const request = http.request(`${gateway.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-steadfast-timeout-ms": "120000" },
  });
  request.on("error", () => undefined);
  request.end(QUESTION);
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
