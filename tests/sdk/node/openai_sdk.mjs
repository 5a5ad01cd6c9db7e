// The `openai` SDK for Node against the gateway.

import OpenAI, {
  APIConnectionTimeoutError,
  APIError,
  APIUserAbortError,
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  RateLimitError,
} from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  GATEWAY, KEY, ONE_DIALECT, PNG, TALE, TEXT, THOUGHT, UPSTREAM, USAGE, USAGE_THINKING,
  answer, breaks, breaksOnce, call, check, exactly, gone, holds, imagesAsked, inFlight, installed, last, lines,
  none, raises, resultsAsked, run, same, says, seen, tale, text, thinking, thinksAsked, vector, within,
} from './common.mjs';

const client = new OpenAI({ baseURL: `${GATEWAY}/v1`, apiKey: KEY, maxRetries: 0 });
const chats = client.chat.completions;
const ASK = [{ role: 'user', content: 'What is it?' }];
const FAST = { model: 'fast', messages: ASK };

const tool = (name) => ({
  type: 'function',
  function: {
    name,
    description: 'Looks up.',
    strict: true,
    parameters: {
      type: 'object',
      properties: { q: { type: 'string' } },
      required: ['q'],
      additionalProperties: false,
    },
  },
});
const tools = [tool('look_up'), tool('weather')];

function usageIs(usage, thought = 0) {
  same('prompt_tokens', usage.prompt_tokens, 16);
  same('cached_tokens', usage.prompt_tokens_details.cached_tokens, 5);
  same('completion_tokens', usage.completion_tokens, 7);
  same('total_tokens', usage.total_tokens, 23);
  if (thought) {
    same('reasoning_tokens', usage.completion_tokens_details.reasoning_tokens, thought);
  }
}

const calls = (message) =>
  message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]);

check('chat', 'text, usage, stop reason and the target that answered', async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const { data, response } = await chats.create(FAST).withResponse();
  same('text', data.choices[0].message.content, TEXT);
  same('finish_reason', data.choices[0].finish_reason, 'stop');
  usageIs(data.usage);
  same('what the provider sent', (await last()).sent.text, TEXT);
  same('target', response.headers.get('x-steadfast-target').split('/')[0], UPSTREAM);
  holds('the request id is readable', data._request_id === response.headers.get('x-request-id'));
});

check('chat', 'system prompt, several turns, limits; a cut answer says so', async () => {
  await says([text(TALE)]);
  const completion = await chats.create({
    model: 'fast',
    max_tokens: 16,
    temperature: 0.5,
    messages: [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'Hi.' },
      { role: 'assistant', content: 'Hello.' },
      { role: 'user', content: 'Count.' },
    ],
  });
  same('finish_reason', completion.choices[0].finish_reason, 'length');
  const entry = await last();
  same('text', completion.choices[0].message.content, entry.sent.text);
  holds('the provider cut it', entry.sent.truncated);
  holds('the system prompt arrived', JSON.stringify(entry.body).includes('Be brief.'));
});

check('stream', 'pieces make the text; usage and stop reason come last', async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const pieces = [];
  let reason, usage;
  const stream = await chats.create({
    ...FAST, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      if (choice.delta.content) pieces.push(choice.delta.content);
      reason = choice.finish_reason ?? reason;
    }
  }
  same('text', pieces.join(''), TEXT);
  same('pieces', pieces.length, (await last()).events);
  same('finish_reason', reason, 'stop');
  usageIs(usage);
});

check('broken streams', 'one that broke goes on: its text once and whole, its proper end', async () => {
  for (const [how, after] of [['reset', 2], ['end', 40], [{ error_event: 'overloaded' }, 90]]) {
    await tale();
    await breaksOnce(how, after);
    const pieces = [];
    const reasons = [];
    for await (const chunk of await chats.create({ ...FAST, stream: true })) {
      for (const choice of chunk.choices) {
        if (choice.delta.content) pieces.push(choice.delta.content);
        if (choice.finish_reason) reasons.push(choice.finish_reason);
      }
    }
    same('text', pieces.join(''), TALE);
    same('finish reasons', reasons, ['stop']);
    same('requests to the provider', (await last()).number, 2);
  }
});

// Beyond an output limit that the caller set, the answer goes on only when that is asked for.
const CONTINUE = { headers: { 'x-steadfast-continue': '1' } };

check('cut answers', 'one longer than its output limit arrives whole, in pieces and at once', async () => {
  await tale();
  const streamed = await chats.stream({ ...FAST, max_tokens: 700 }, CONTINUE).finalChatCompletion();
  same('streamed', streamed.choices[0].message.content, TALE);
  same('finish_reason', streamed.choices[0].finish_reason, 'stop');
  holds('it was continued', (await last()).number > 1);
  await tale();
  const whole = await chats.create({ ...FAST, max_tokens: 700 }, CONTINUE);
  same('whole', whole.choices[0].message.content, TALE);
  same('finish_reason', whole.choices[0].finish_reason, 'stop');
});

check('tools', 'a call, its result sent back, an answer that uses it', async () => {
  await says([call('weather', { q: 'caf\u00e9' }, 'call_1')], [text('It is 42 degrees.')]);
  const { message, finish_reason } = (await chats.create({ ...FAST, tools })).choices[0];
  same('finish_reason', finish_reason, 'tool_calls');
  same('calls', calls(message), [['weather', { q: 'caf\u00e9' }]]);
  const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: '42 degrees' };
  const final = await chats.create({ model: 'fast', tools, messages: [...ASK, message, result] });
  same('text', final.choices[0].message.content, 'It is 42 degrees.');
  const arrived = resultsAsked(await last());
  holds(`the result arrived: ${arrived}`, arrived.length === 1 && /42 degrees/.test(arrived[0]));
});

check('parallel tools', 'two calls at once, both results sent back, whole and in a stream', async () => {
  for (const stream of [false, true]) {
    await says(
      [call('look_up', { q: '1' }, 'call_1'), call('weather', { q: '2' }, 'call_2')],
      [text('Both.')],
    );
    const completion = stream
      ? await chats.stream({ ...FAST, tools }).finalChatCompletion()
      : await chats.create({ ...FAST, tools });
    const { role, content, tool_calls } = completion.choices[0].message;
    const message = { role, content, tool_calls };
    same('calls', calls(message), [['look_up', { q: '1' }], ['weather', { q: '2' }]]);
    same('ids', new Set(tool_calls.map((c) => c.id)).size, 2);
    const results = tool_calls.map((c) => ({
      role: 'tool', tool_call_id: c.id, content: `result of ${c.function.name}`,
    }));
    const messages = [...ASK, message, ...results];
    const final = await chats.create({ model: 'fast', tools, messages });
    same('text', final.choices[0].message.content, 'Both.');
    const arrived = resultsAsked(await last());
    holds(`in order: ${arrived}`, /look_up/.test(arrived[0]) && /weather/.test(arrived[1]));
  }
});

check('images', 'an image reaches the provider byte for byte', async () => {
  await says([text('A red pixel.')]);
  const url = `data:image/png;base64,${PNG}`;
  const content = [{ type: 'text', text: 'What is it?' }, { type: 'image_url', image_url: { url } }];
  const completion = await chats.create({ model: 'fast', messages: [{ role: 'user', content }] });
  same('text', completion.choices[0].message.content, 'A red pixel.');
  same('images', imagesAsked(await last()), [PNG]);
});

check('thinking', 'reasoning_effort makes the provider think; its thoughts and their tokens come', async () => {
  await says(answer([thinking(THOUGHT), text(TEXT)], { usage: USAGE_THINKING }));
  const completion = await chats.create({ ...FAST, model: 'smart', reasoning_effort: 'low' });
  same('thoughts', completion.choices[0].message.reasoning_content, THOUGHT);
  same('text', completion.choices[0].message.content, TEXT);
  // Anthropic does not report how much of its output was thinking.
  usageIs(completion.usage, UPSTREAM === 'anthropic' ? 0 : 3);
  holds('the provider was asked to think', thinksAsked(await last()));
});

check('thinking', "thoughts in a stream, then a turn that sends them back with a tool's result", async () => {
  await says(
    [thinking(THOUGHT), text('Let me look.'), call('weather', { q: 'x' }, 'call_1')],
    [text('42.')],
  );
  const asked = { model: 'smart', reasoning_effort: 'low', tools };
  let thoughts = '';
  const stream = chats.stream({ ...asked, messages: ASK });
  stream.on('chunk', (chunk) => {
    thoughts += chunk.choices[0]?.delta?.reasoning_content ?? '';
  });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  same('thoughts', thoughts, THOUGHT);
  same('text', message.content, 'Let me look.');
  const { role, content, tool_calls } = message;
  const history = [
    ...ASK,
    { role, content, tool_calls, reasoning_content: thoughts },
    { role: 'tool', tool_call_id: tool_calls[0].id, content: '42 degrees' },
  ];
  const final = await chats.create({ ...asked, messages: history });
  same('text', final.choices[0].message.content, '42.');
  holds('the result arrived', /42 degrees/.test(resultsAsked(await last())[0]));
});

const City = z.object({ name: z.string(), people: z.number() });

check('structured output', 'chat.completions.parse() with a zod schema', async () => {
  await says([text('{"name": "Z\u00fcrich", "people": 443037}')]);
  const completion = await chats.parse({
    ...FAST, response_format: zodResponseFormat(City, 'city'),
  });
  same('parsed', completion.choices[0].message.parsed, { name: 'Z\u00fcrich', people: 443037 });
  holds('the schema reached the provider', JSON.stringify((await last()).body).includes('people'));
});

check('streaming helpers', 'chat.completions.stream(): events and the final completion', async () => {
  await says(answer([text(TEXT), call('look_up', { q: 'x y' }, 'call_1')], { usage: USAGE }));
  const stream = chats.stream({ ...FAST, tools, stream_options: { include_usage: true } });
  let deltas = '';
  let args;
  stream.on('content.delta', ({ delta }) => (deltas += delta));
  stream.on('tool_calls.function.arguments.done', (event) => (args = event.parsed_arguments));
  const final = await stream.finalChatCompletion();
  same('deltas', deltas, TEXT);
  same('arguments', args, { q: 'x y' });
  same('final text', final.choices[0].message.content, TEXT);
  same('final call', calls(final.choices[0].message), [['look_up', { q: 'x y' }]]);
  usageIs(final.usage);
});

check('streaming helpers', 'runTools() runs the tool and ends with the answer', async () => {
  for (const stream of [false, true]) {
    await says([call('weather', { q: 'Rome' }, 'call_1')], [text('Warm.')]);
    const weather = tool('weather');
    weather.function.parse = JSON.parse;
    weather.function.function = ({ q }) => `42 degrees in ${q}`;
    const runner = chats.runTools({ ...FAST, messages: [...ASK], tools: [weather], stream });
    same('text', await runner.finalContent(), 'Warm.');
    holds('the result arrived', /42 degrees in Rome/.test(resultsAsked(await last())[0]));
  }
});

check('async', 'chats at once, each with its own answer', async () => {
  const asked = Array.from({ length: 8 }, (_, n) =>
    chats.create({ model: 'fast', messages: [{ role: 'user', content: `${n}` }] }));
  const got = (await Promise.all(asked)).map((a) => a.choices[0].message.content).sort();
  const sent = (await seen()).slice(-8).map((entry) => entry.sent.text).sort();
  same('texts', got, sent);
  same('different texts', new Set(got).size, 8);
});

check('models', 'the list, and one of them', async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  holds(`ids: ${ids}`, ['fast', 'limited', 'missing', 'smart'].every((id) => ids.includes(id)));
  same('one', (await client.models.retrieve('smart')).id, 'smart');
  const error = await raises(NotFoundError, client.models.retrieve('nowhere'));
  holds('it says where to look', error.message.includes('GET /v1/models'));
});

/** What every error of the SDK has to carry. */
function told(error, status, says) {
  same('status', error.status, status);
  holds('a request id', error.requestID?.startsWith('req_'));
  holds('a message', error.error.message);
  if (says) holds(`the message says ${says}: ${error.message}`, error.message.includes(says));
  return error;
}

check('errors: 400', 'what the gateway can not read', async () => {
  const messages = [{ role: 'nobody', content: 'x' }];
  told(await raises(BadRequestError, chats.create({ model: 'fast', messages })), 400, 'nobody');
});

check('errors: 400', 'what the provider refuses, in its own words where it is the same dialect', async () => {
  await breaks({ error: 'format' });
  const error = told(await raises(BadRequestError, chats.create(FAST)), 400);
  same('type', error.type, 'invalid_request_error');
  if (UPSTREAM === 'openai') {
    same('code', error.code, 'missing_required_parameter');
    same('param', error.param, 'messages[0].content[0].type');
  }
  same('requests to the provider', (await last()).number, 1);
});

check('errors: 401', 'a key the gateway does not know', async () => {
  const stranger = client.withOptions({ apiKey: 'sk-no' });
  const asked = (await seen()).length;
  told(await raises(AuthenticationError, stranger.chat.completions.create(FAST)), 401, 'gateway key');
  await raises(AuthenticationError, stranger.models.list());
  same('requests to the provider', (await seen()).length, asked);
});

check('errors: 404', 'a model the provider does not have', async () => {
  told(await raises(NotFoundError, chats.create({ ...FAST, model: 'missing' })), 404);
});

check('errors: 429', 'a limit, with when to come back; until then the provider is left alone', async () => {
  await breaks({ error: { rate_limit: { retry_after: '7', retry_info: '7s' } } });
  for (let n = 0; n < 2; n++) {
    const error = await raises(RateLimitError, chats.create({ ...FAST, model: 'limited' }));
    told(error, 429);
    const after = error.headers.get('retry-after');
    holds(`retry-after: ${after}`, ['6', '7'].includes(after));
    const ms = Number(error.headers.get('retry-after-ms'));
    holds(`retry-after-ms: ${ms}`, ms > 5000 && ms <= 7000);
  }
  same('requests to the provider', (await last()).number, 1);
});

check('errors: 5xx', 'retries used up: what happened and what was tried', async () => {
  await breaks({ error: 'server_error' });
  const error = await raises(InternalServerError, chats.create(FAST));
  told(error, 502, `Tried: ${UPSTREAM}/`);
  same('attempts', error.headers.get('x-steadfast-attempts'), '2');
  same('requests to the provider', (await last()).number, 2);
});

check('errors: 5xx', 'an overloaded provider, an unreachable one, one that is too slow', async () => {
  const slow = { headers: { 'x-steadfast-timeout-ms': '150' } };
  for (const [fault, status, options] of [
    [{ error: 'overloaded' }, 503], ['reset', 502], ['hang', 504, slow],
  ]) {
    await breaks(fault);
    told(await raises(InternalServerError, chats.create(FAST, options)), status);
  }
});

check('errors: 5xx', "a key of ours that the provider refuses is not the caller's 401", async () => {
  await breaks({ error: 'auth' });
  const error = await raises(InternalServerError, chats.create(FAST));
  told(error, 503, 'An operator has to renew them');
  holds('no key is told', !error.message.includes('sk-'));
});

check('errors in a stream', "what came before is delivered, then the SDK's own error, once", async () => {
  for (const how of [{ error_event: 'overloaded' }, 'reset', 'end']) {
    await says([text('one two three four five six')]);
    await breaks({ break: { after_events: 3, how } });
    let got = '';
    let error;
    try {
      for await (const chunk of await chats.create({ ...FAST, stream: true })) {
        for (const choice of chunk.choices) {
          got += choice.delta.content ?? '';
          same('finish_reason', choice.finish_reason ?? null, null);
        }
      }
    } catch (raised) {
      error = raised;
    }
    exactly(APIError, error);
    holds(`a type: ${JSON.stringify(error.error)}`, error.type);
    holds(`a message: ${error.message}`, error.error.message);
    same('pieces', got, 'one two three four');
  }
});

check('errors in a stream', 'before the first piece it is a status, even for a stream', async () => {
  await breaks({ error: 'server_error' });
  told(await raises(InternalServerError, chats.create({ ...FAST, stream: true })), 502);
});

check('SDK retries', "do not multiply with the gateway's", async () => {
  await breaks({ error: 'server_error' });
  const eager = client.withOptions({ maxRetries: 3 }).chat.completions;
  await raises(InternalServerError, eager.create(FAST));
  same('requests to the provider', (await last()).number, 2);
});

check('SDK retries', 'wait as long as the gateway says while the provider rests, then succeed', async () => {
  const brief = { ...FAST, model: 'brief' };
  await breaks({ error: { rate_limit: { retry_after_ms: 600, retry_info: '0.6s' } } });
  await raises(RateLimitError, chats.create(brief));
  await breaks({ coalesce: { frames: 1 } });
  await says([text('Rested.')]);
  const started = performance.now();
  const eager = client.withOptions({ maxRetries: 1 }).chat.completions;
  same('text', (await eager.create(brief)).choices[0].message.content, 'Rested.');
  holds('it waited', performance.now() - started > 200);
  same('requests to the provider', (await last()).number, 1);
});

async function stalls() {
  await says([text('one two three four five six')]);
  await breaks({ break: { after_events: 3, how: 'stall' } });
}

check('cancellation', 'leaving a stream, and aborting one, ends the request at the provider', async () => {
  await stalls();
  for await (const chunk of await chats.create({ ...FAST, stream: true })) {
    if (chunk.choices[0]?.delta.content) {
      same('under way', await inFlight(), 1);
      break;
    }
  }
  await gone();
  await stalls();
  const stream = chats.stream(FAST);
  stream.on('content.delta', () => stream.abort());
  await raises(APIUserAbortError, stream.finalChatCompletion());
  await gone();
});

check('cancellation', "an AbortController, and a client's timeout, end it too", async () => {
  await breaks('hang');
  const controller = new AbortController();
  const asked = chats.create(FAST, { signal: controller.signal });
  asked.catch(() => {});
  await within(5, 'it to be under way', async () => (await inFlight()) === 1);
  controller.abort();
  await raises(APIUserAbortError, asked);
  await gone();
  await raises(APIConnectionTimeoutError, chats.create(FAST, { timeout: 200 }));
  await gone();
});

none('token counting', 'its endpoint is of the Responses API');

const EMBED = 'text-embedding-3-small';

async function embeds(texts, more = {}) {
  const answer = await client.embeddings.create({ model: EMBED, input: texts, ...more });
  same('vectors', answer.data.length, texts.length);
  answer.data.forEach((one, at) => {
    same('index', one.index, at);
    same(`the vector of text ${at}`, one.embedding, vector(EMBED, texts[at], more.dimensions ?? 1536));
  });
  holds('usage', answer.usage.prompt_tokens > 0);
  const asked = (await seen()).filter((entry) => entry.path.includes('embeddings'));
  same('the model asked', [...new Set(asked.map((entry) => entry.model))], [EMBED]);
}

if (UPSTREAM === 'openai') {
  check('embeddings', 'batches of 1 to 2,048, as base64 and as numbers, with dimensions', async () => {
    for (const count of [1, 2, 7, 100]) await embeds(lines(count));
    await embeds(lines(2048), { dimensions: 16 });
    await embeds(lines(2048), { dimensions: 16, encoding_format: 'float' });
  });
  // The limit comes last: after it the model is left alone.
  for (const fault of [
    { error: 'server_error' },
    { break: { after_bytes: 700, how: 'close' } },
    { error: { rate_limit: {} } },
  ]) {
    check('embeddings', `exact under ${JSON.stringify(fault)}`, async () => {
      await breaks(fault, { nth: 1 });
      const before = (await seen()).length;
      await embeds(lines(300), { dimensions: 32 });
      same('requests of the provider', (await seen()).length - before, 2);
    });
  }
} else {
  none('embeddings', ONE_DIALECT);
}

none('conversations', 'those are of the Responses API');
none('background', 'those are of the Responses API');
none('websocket', 'those are of the Responses API');

await run(await installed('openai'));
