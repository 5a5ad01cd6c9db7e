// Vercel's AI SDK, with the provider of the vendor whose dialect it is to speak. The checks are those of
// `../python/suite.py`, which describes how a script is started.

import { APICallError, generateObject, generateText, RetryError, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

import {
  again, breaks, call, check, GATEWAY, holds, imagesAsked, installed, KEY, last, PNG, resultsAsked, run, same,
  says, seen, tale, TALE, text, TEXT, thinking, thinksAsked, THOUGHT, UPSTREAM,
} from './common.mjs';

const DIALECT = process.env.FRAMEWORK_DIALECT;
const FAST = process.env.FRAMEWORK_FAST;
const SMART = process.env.FRAMEWORK_SMART;
const LIMITED = process.env.FRAMEWORK_LIMITED;
const DIRECT = process.env.FRAMEWORK_WAY === 'direct';
const CITY = 'Z\u00fcrich';
const PERSON = { name: 'Ada', age: 36 };
// How long a check may take, in seconds. Alone, a silent stream is waited for for ever.
const LIMIT = 25_000;

// paste: openai
import { createOpenAI } from '@ai-sdk/openai';

function openai(model, apiKey = KEY) {
  return createOpenAI({ baseURL: `${GATEWAY}/v1`, apiKey }).chat(model);
}

// paste: anthropic
import { createAnthropic } from '@ai-sdk/anthropic';

function anthropic(model, apiKey = KEY) {
  return createAnthropic({ baseURL: `${GATEWAY}/v1`, apiKey })(model);
}

// paste: gemini
import { createGoogleGenerativeAI } from '@ai-sdk/google';

function gemini(model, apiKey = KEY) {
  return createGoogleGenerativeAI({ baseURL: `${GATEWAY}/v1beta`, apiKey })(model);
}

// end

const model = { openai, anthropic, gemini }[DIALECT];

/** How often the framework has asked for an answer. */
async function asked() {
  if (DIRECT) return (await seen()).length;
  const page = await (await fetch(`${GATEWAY}/metrics`)).text();
  const found = page.matchAll(/^steadfast_requests_total\{[^}]*\} (\d+)$/gm);
  return [...found].reduce((sum, [, count]) => sum + Number(count), 0);
}

/** A check in which the provider fails, and the framework is not to notice. */
function unseen(feature, name, expected, body) {
  check(feature, name, async () => {
    const before = await asked();
    await body();
    const times = (await asked()) - before;
    if (times > expected) again(`it asked ${times} times instead of ${expected}`);
  }, LIMIT);
}

const say = async (options = {}) => (await generateText({ model: model(FAST), prompt: 'Say it.', ...options })).text;

/** The pieces of a streamed answer. */
async function streamed(options = {}) {
  let failed;
  const onError = ({ error }) => (failed = error);
  const abortSignal = AbortSignal.timeout(LIMIT - 1_000);
  const result = streamText({ model: model(FAST), prompt: 'Tell it.', onError, abortSignal, ...options });
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  if (failed) throw failed;
  if (abortSignal.aborted) throw new Error('not over in time');
  return { pieces, text: await result.text };
}

check('chat', 'a whole answer, character by character, with usage', async () => {
  await says([text(TEXT)]);
  const got = await generateText({ model: model(FAST), prompt: 'Say it.' });
  same('text', got.text, TEXT);
  holds('usage', got.usage.outputTokens > 0);
});

check('stream', 'a long answer in many pieces', async () => {
  await tale();
  const { pieces } = await streamed();
  same('text', pieces.join(''), TALE);
  holds(`${pieces.length} pieces`, pieces.length > 10);
});

const calls = [[call('look_up', { city: CITY }, 'call_1')], [text('It is 21 degrees there.')]];

async function withTool(stream) {
  const cities = [];
  const look_up = tool({
    description: 'The weather in a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (cities.push(city), '21 degrees'),
  });
  const options = { model: model(FAST), prompt: 'How warm is it?', tools: { look_up }, stopWhen: stepCountIs(3) };
  const got = stream ? (await streamed(options)).text : (await generateText(options)).text;
  same('calls', cities, [CITY]);
  same('text', got, 'It is 21 degrees there.');
  holds('the result reached it', resultsAsked(await last()).join('').includes('21 degrees'));
}

for (const stream of [false, true]) {
  check('tools', `a tool is called and its result used, ${stream ? 'streamed' : 'whole'}`, async () => {
    await says(...calls);
    await withTool(stream);
  });
}

check('structured output', "an object of a type of one's own", async () => {
  // Where the provider has no field for a schema, the SDK makes a tool of it.
  await says([text(JSON.stringify(PERSON))]);
  const schema = z.object({ name: z.string(), age: z.number() });
  const { object } = await generateObject({ model: model(FAST), prompt: 'Who is it?', schema });
  same('object', object, PERSON);
});

check('image', 'reaches the provider byte for byte', async () => {
  await says([text('A red pixel.')]);
  const image = { type: 'image', image: Buffer.from(PNG, 'base64'), mediaType: 'image/png' };
  const content = [{ type: 'text', text: 'What is this?' }, image];
  same('text', await say({ prompt: undefined, messages: [{ role: 'user', content }] }), 'A red pixel.');
  same('images', imagesAsked(await last()), [PNG]);
});

const THINK = {
  openai: { openai: { reasoningEffort: 'low' } },
  anthropic: { anthropic: { thinking: { type: 'enabled', budgetTokens: 2000 } } },
  gemini: { google: { thinkingConfig: { thinkingBudget: 2000, includeThoughts: true } } },
};

check('thinking', 'is asked for, and its text shown where the dialect shows it', async () => {
  await says([thinking(THOUGHT), text('Two.')]);
  const got = await generateText({ model: model(SMART), prompt: 'How many?', providerOptions: THINK[DIALECT] });
  same('text', got.text, 'Two.');
  if (DIALECT !== 'openai') same('thoughts', got.reasoningText, THOUGHT);
  holds('asked for', thinksAsked(await last()));
});

unseen('overloaded', 'two refusals, then an answer, whole and streamed', 2, async () => {
  await breaks({ error: 'overloaded' }, { times: 2 });
  await says([text(TEXT)]);
  same('text', await say(), TEXT);
  await breaks({ error: 'overloaded' }, { times: 2 });
  await tale();
  same('text', (await streamed()).pieces.join(''), TALE);
});

unseen('rate limit', 'with a hint of a second', 1, async () => {
  await breaks({ error: { rate_limit: { retry_after: '1', retry_info: '1s' } } }, { times: 1 });
  await says([text(TEXT)]);
  same('text', await say(), TEXT);
});

for (const [feature, name, how] of [
  ['cut in text', 'the connection is closed in the middle of a sentence', 'close'],
  ['stall', 'the stream stops and stays open', 'stall'],
  ['error event', 'an error in the middle of a sentence', { error_event: 'overloaded' }],
]) {
  unseen(feature, name, 1, async () => {
    await tale();
    await breaks({ break: { after_events: 12, how } }, { times: 1 });
    same('text', (await streamed()).pieces.join(''), TALE);
  });
}

unseen('cut in a call', 'the connection is closed inside of the arguments', 2, async () => {
  await says(calls[0], ...calls);
  const [how, after_events] = UPSTREAM === 'gemini' ? ['truncated_json', 0] : ['close', 3];
  await breaks({ break: { after_events, how } }, { times: 1 });
  await withTool(true);
});

/** The SDK's own error with this status. */
async function raised(promise, status, ...words) {
  let got;
  try {
    got = await promise;
  } catch (error) {
    const last = RetryError.isInstance(error) ? error.lastError : error;
    if (!APICallError.isInstance(last)) throw error;
    same('status', last.statusCode, status);
    for (const word of words) holds(`\`${word}\` in ${last.message}`, last.message.includes(word));
    return;
  }
  throw new Error(`nothing was raised, the answer was ${JSON.stringify(got)}`.slice(0, 300));
}

check('errors', 'a model that is not there: 404', () =>
  raised(say({ model: model('no-such-model') }), 404, 'no-such-model'));

// A simulated provider takes any key.
if (!DIRECT) check('errors', 'a wrong key: 401', () => raised(say({ model: model(FAST, 'wrong') }), 401, 'key'));

// By which words clients know an overflow.
const OVERFLOW = {
  openai: 'maximum context length', anthropic: 'prompt is too long', gemini: 'exceeds the maximum number of tokens',
};

check('errors', 'a prompt that is too long: 400', () =>
  raised(say({ prompt: 'word '.repeat(1_200_000) }), 400, OVERFLOW[DIALECT]));

check('errors', 'a limit that lasts: 429', async () => {
  await breaks({ error: { rate_limit: { retry_after: '3600', retry_info: '3600s' } } });
  await raised(say({ model: model(LIMITED), maxRetries: 0 }), 429);
});

await run(await installed('ai'));
