// What the scripts of both SDKs share; `../python/common.py` is the same for Python and describes
// how a script is started and what it prints.

import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';

export const GATEWAY = process.env.SDK_GATEWAY;
export const KEY = process.env.SDK_KEY;
export const UPSTREAM = process.env.SDK_UPSTREAM;
const CONTROL = process.env.SDK_CONTROL;

// One red pixel.
export const PNG =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM' +
  'IQAAAABJRU5ErkJggg==';
// Text that is easily broken: multi-byte characters, a line end, quotes, a tab.
export const TEXT = 'Na\u00efve \u65e5\u672c \u{1f980} \u2014 "quoted",\r\n\ttabbed, and done.';
export const THOUGHT = 'Step one.\nThen caf\u00e9, then two.';
// Tokens that the provider reports; those read from the cache are separate.
// Long enough for breaks and cuts in the middle; no sentence is like another.
export const TALE = Array.from({ length: 60 }, (_, at) => at + 1)
  .map((n) => `On night ${n} the keeper saw ${n * n + 1} moths, ${n * 13} ships and na\u00efve star ${n * 7}.`)
  .join(' ');
export const USAGE = { input: 11, output: 7, cache_read: 5 };
export const USAGE_THINKING = { ...USAGE, reasoning: 3 };

// The provider.

async function control(method, path, body) {
  const response = await fetch(`${CONTROL}/${path}`, { method, body: body && JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${text}`);
  return text;
}

export const text = (value) => ({ text: value });
export const thinking = (value) => ({ thinking: value });
export const call = (name, args, id) => ({
  tool_call: { id, name, arguments: JSON.stringify(args) },
});
export const answer = (blocks, fields = {}) => ({ blocks, chunks: 6, ...fields });

/** What the provider answers next: each a list of blocks, or a whole answer. */
export const says = (...answers) =>
  control('PUT', 'script', answers.map((a) => (Array.isArray(a) ? answer(a) : a)));

/** The provider tells all of it, and goes on with it when it is asked to. */
export const tale = () =>
  says({ blocks: [text(TALE)], chunks: 24, goes_on: 'faithful' });

/** The fault that every request from now on meets. */
export const breaks = (fault, rule = {}) =>
  control('PUT', 'faults', { rules: [{ ...rule, fault }] });

/** The next stream breaks after so many events; the ones that follow do not. */
export const breaksOnce = (how, after) =>
  breaks({ break: { after_events: after, how } }, { nth: 1 });

/** Every generation the provider was asked for. */
export const seen = async () =>
  JSON.parse(await control('GET', 'journal')).filter((entry) => entry.number);

/** The newest request the provider saw, once it is over. */
export const last = () =>
  within(5, "the provider's last request to end", async () => {
    const entry = (await seen()).at(-1);
    return entry.end !== 'open' && entry;
  });

/** What `look` finds, waiting for it. */
export async function within(seconds, what, look) {
  const end = performance.now() + seconds * 1000;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > end) throw new Error(`waited ${seconds} s for ${what}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

/** What the gateway's metrics say is under way. */
export async function inFlight() {
  const page = await (await fetch(`${GATEWAY}/metrics`)).text();
  return Number(/^steadfast_in_flight (\d+)$/m.exec(page)[1]);
}

/** Waits until the gateway has let go of everything and the provider has noticed. */
export async function gone() {
  await within(5, 'nothing to be under way', async () => (await inFlight()) === 0);
  same("how the provider's request ended", (await last()).end, 'dropped');
}

// The requests of the provider, in any dialect.

function partsAsked(entry) {
  const { contents, messages, input } = entry.body;
  const all = contents ?? messages ?? input;
  return (typeof all === 'string' ? [{ role: 'user', content: all }] : all).flatMap((message) => {
    const content = message.parts ?? message.content;
    const parts = Array.isArray(content) ? content : [{ type: 'text', text: content ?? '' }];
    return parts.map((part) => [message, part]);
  });
}

/** The tool results that reached the provider, in order. */
export const resultsAsked = (entry) =>
  partsAsked(entry).flatMap(([message, part]) => {
    if (message.role === 'tool') return [part.text];
    if (message.type?.endsWith('_output')) {
      return [typeof message.output === 'string' ? message.output : message.output[0].text];
    }
    if (part.type === 'tool_result') {
      return [typeof part.content === 'string' ? part.content : part.content[0].text];
    }
    return part.functionResponse ? [JSON.stringify(part.functionResponse.response)] : [];
  });

/** The images that reached the provider, in base64. */
export const imagesAsked = (entry) =>
  partsAsked(entry).flatMap(([, part]) => {
    if (part.image_url) return [(part.image_url.url ?? part.image_url).split('base64,')[1]];
    if (part.type === 'image') return [part.source.data];
    return part.inlineData ? [part.inlineData.data] : [];
  });

/** The signatures of thinking that reached the provider. */
export const signaturesAsked = (entry) =>
  partsAsked(entry).flatMap(([, part]) => part.signature ?? part.thoughtSignature ?? []);

/** Whether the provider was asked to think. */
export const thinksAsked = ({ body }) =>
  Boolean(body.reasoning_effort || body.reasoning || body.thinking || body.generationConfig?.thinkingConfig);

// Checks.

const checks = [];
export const check = (feature, name, run, limit = 20_000) => checks.push({ feature, name, run, limit });
/** Says that a check holds, but that what is checked had to ask more than once. */
export function again(why) {
  throw new Again(why);
}
class Again extends Error {}
/** Says that the SDK has no such thing over this API. */
export const none = (feature, why) => checks.push({ feature, why });

export function same(what, got, expected) {
  if (!isDeepStrictEqual(got, expected)) {
    throw new Error(`${what}: got ${JSON.stringify(got)}, expected ${JSON.stringify(expected)}`);
  }
}

export function holds(what, value) {
  if (!value) throw new Error(`not so: ${what}`);
}

/** The error of exactly this class that the promise is rejected with. */
export async function raises(kind, promise) {
  let got;
  try {
    got = await promise;
  } catch (error) {
    return exactly(kind, error);
  }
  throw new Error(`nothing was raised, the answer was ${JSON.stringify(got)}`.slice(0, 300));
}

export function exactly(kind, error) {
  if (error?.constructor !== kind) {
    throw new Error(`raised ${error?.constructor?.name} instead of ${kind.name}: ${error?.message}`);
  }
  return error;
}

const line = (...fields) =>
  console.log(fields.map((field) => String(field).replace(/\s+/g, ' ').trim()).join('\t'));

/** Runs the checks, in their order, and exits. */
export async function run(version) {
  // The parent process may have ended.
  setTimeout(() => process.exit(3), 240_000).unref();
  line('version', version);
  const only = process.argv[2] ?? '';
  let failed = false;
  for (const { feature, name, why, run, limit } of checks) {
    if (!`${feature}: ${name ?? why}`.includes(only)) continue;
    if (why) {
      line('none', feature, '', why);
      continue;
    }
    try {
      await control('PUT', 'faults', {});
      await control('PUT', 'script', []);
      let late;
      const over = new Promise((_, fail) => {
        late = setTimeout(() => fail(new Error(`not over after ${limit / 1000} s`)), limit);
      });
      await Promise.race([run(), over]).finally(() => clearTimeout(late));
      line('ok', feature, name);
    } catch (error) {
      if (error instanceof Again) {
        line('again', feature, name, error.message);
        continue;
      }
      failed = true;
      line('fail', feature, name, `${error.constructor.name}: ${error.message}`.slice(0, 1000));
      if (only) console.error(error);
    }
  }
  process.exit(failed ? 1 : 0);
}

/** The version of an installed package. */
export async function installed(name) {
  const { readFile } = await import('node:fs/promises');
  const at = new URL(`./node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(await readFile(at, 'utf8')).version;
}

// Embeddings and token counts.

export const ONE_DIALECT =
  "embeddings go to providers of the caller's dialect alone, since nothing in them is translated";

/** The simulator's vector of a text, by the rule that its documentation has. */
export function vector(model, text, dimensions) {
  const numbers = [];
  for (let block = 0; numbers.length < dimensions; block += 1) {
    const digest = createHash('sha256').update(`${model}\n${text}\n${block}`).digest();
    for (let at = 0; at < 32; at += 4) {
      numbers.push(((digest.readUInt32LE(at) >>> 8) - 2 ** 23) / 2 ** 23);
    }
  }
  return numbers.slice(0, dimensions);
}

/** Texts of which no two are the same. */
export const lines = (count) => Array.from({ length: count }, (_, n) => `${TEXT} ${(n * 37) % 4096}`);

/** Tokens of a message with this text, by the simulator's rule. */
export const counted = (said) => 4 + Math.ceil(Buffer.byteLength(said) / 4);
