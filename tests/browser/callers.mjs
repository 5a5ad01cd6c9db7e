// Callers that ask as fast as they can, or as often as they are told.

import { readFile, readdir } from "node:fs/promises";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

export const QUESTION = JSON.stringify({
  model: "gpt-4o",
  max_tokens: 1,
  messages: [{ role: "user", content: "How is the night?" }],
});

/** So many callers of `gateway` at once, on connections that are kept; together at most `rate` calls a second. */
export function callers(gateway, atOnce, rate = Infinity) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: atOnce });
  const options = { method: "POST", agent, headers: { "content-type": "application/json" } };
  const ask = () =>
    new Promise((resolve) => {
      const request = http.request(`${gateway.url}/v1/chat/completions`, options, (answer) => {
        answer.resume();
        answer.on("end", () => resolve(answer.statusCode === 200));
      });
      request.on("error", () => resolve(false));
      request.end(QUESTION);
    });
  const began = performance.now();
  const state = { asked: 0, failed: 0 };
  let over = false;
  const all = Array.from({ length: atOnce }, async () => {
    while (!over) {
      const early = (state.asked / rate) * 1_000 - (performance.now() - began);
      if (early > 1) await sleep(early);
      state.asked += 1;
      if (!(await ask())) state.failed += 1;
    }
  });
  return {
    state,
    stop: async () => {
      over = true;
      await Promise.all(all);
    },
  };
}

/** Seconds of a processor that the threads of `program` have had; those of one that has ended are small. */
export async function cpu(program) {
  const folder = `/proc/${program.child.pid}/task`;
  const times = (await readdir(folder)).map(async (thread) => {
    const stat = await readFile(`${folder}/${thread}/schedstat`, "utf8").catch(() => "0");
    return Number(stat.split(" ")[0]);
  });
  return (await Promise.all(times)).reduce((all, one) => all + one, 0) / 1e9;
}
