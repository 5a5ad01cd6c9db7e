// The Responses API of the `openai` SDK for Node against the gateway.

import OpenAI, {
  APIConnectionTimeoutError,
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  RateLimitError,
} from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { WebSocketError } from 'openai/resources/responses/internal-base';
import { ResponsesWS } from 'openai/resources/responses/ws';
import { z } from 'zod';
import {
  GATEWAY, KEY, PNG, TALE, TEXT, THOUGHT, UPSTREAM, USAGE, USAGE_THINKING,
  answer, breaks, breaksOnce, call, check, gone, holds, imagesAsked, inFlight, installed, last,
  none, raises, resultsAsked, run, same, says, seen, tale, text, thinking, thinksAsked,
} from './common.mjs';

const client = new OpenAI({ baseURL: `${GATEWAY}/v1`, apiKey: KEY, maxRetries: 0 });
const { responses } = client;
const ASK = 'What is it?';
const FAST = { model: 'fast', input: ASK };

const tool = (name) => ({
  type: 'function',
  name,
  description: 'Looks up.',
  strict: true,
  parameters: {
    type: 'object',
    properties: { q: { type: 'string' } },
    required: ['q'],
    additionalProperties: false,
  },
});
const tools = [tool('look_up'), tool('weather')];

function usageIs(usage, thought = 0) {
  same('input_tokens', usage.input_tokens, 16);
  same('cached_tokens', usage.input_tokens_details.cached_tokens, 5);
  same('output_tokens', usage.output_tokens, 7);
  same('total_tokens', usage.total_tokens, 23);
  if (thought) same('reasoning_tokens', usage.output_tokens_details.reasoning_tokens, thought);
}

const calls = (response) => response.output.filter((item) => item.type === 'function_call');
const made = (response) => calls(response).map((c) => [c.name, JSON.parse(c.arguments)]);

/** The events of a stream, numbered without a gap, and the response at its end. */
async function whole(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  same('numbers', events.map((e) => e.sequence_number), events.map((_, at) => at));
  same('the last event', events.at(-1).type, 'response.completed');
  return [events, events.at(-1).response];
}

const pieces = (events, type) => events.filter((e) => e.type === type).map((e) => e.delta).join('');
const textOf = (response) =>
  response.output.filter((item) => item.type === 'message').flatMap((m) => m.content).map((c) => c.text).join('');

check('chat', 'text, usage, status and the target that answered', async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const { data, response } = await responses.create(FAST).withResponse();
  same('text', data.output_text, TEXT);
  same('status', data.status, 'completed');
  usageIs(data.usage);
  same('what the provider sent', (await last()).sent.text, TEXT);
  same('target', response.headers.get('x-steadfast-target').split('/')[0], UPSTREAM);
});

check('stream', 'pieces make the text; each event has its number, and the last one all of it', async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const [events, response] = await whole(await responses.create({ ...FAST, stream: true }));
  same('text', pieces(events, 'response.output_text.delta'), TEXT);
  same('whole text', textOf(response), TEXT);
  usageIs(response.usage);
});

check('broken streams', 'one that broke goes on: its text once and whole, its proper end', async () => {
  for (const [how, after] of [['reset', 2], ['end', 40], [{ error_event: 'overloaded' }, 90]]) {
    await tale();
    await breaksOnce(how, after);
    const [events, response] = await whole(await responses.create({ ...FAST, stream: true }));
    same('text', pieces(events, 'response.output_text.delta'), TALE);
    same('whole text', textOf(response), TALE);
    same('requests to the provider', (await last()).number, 2);
  }
});

check('cut answers', 'one longer than its output limit arrives whole', async () => {
  await tale();
  const asked = { headers: { 'x-steadfast-continue': '1' } };
  const response = await responses.create({ ...FAST, max_output_tokens: 700 }, asked);
  same('whole', [response.output_text, response.status], [TALE, 'completed']);
});

check('tools', 'a call, its result sent back, an answer that uses it', async () => {
  await says([call('weather', { q: 'caf\u00e9' }, 'call_1')], [text('It is 42 degrees.')]);
  const response = await responses.create({ ...FAST, tools });
  same('calls', made(response), [['weather', { q: 'caf\u00e9' }]]);
  const result = { type: 'function_call_output', call_id: calls(response)[0].call_id, output: '42 degrees' };
  const input = [{ role: 'user', content: ASK }, ...response.output, result];
  const final = await responses.create({ model: 'fast', tools, input });
  same('text', final.output_text, 'It is 42 degrees.');
  const arrived = resultsAsked(await last());
  holds(`the result arrived: ${arrived}`, arrived.length === 1 && /42 degrees/.test(arrived[0]));
});

check('parallel tools', 'two calls at once, in a stream', async () => {
  await says([call('look_up', { q: '1' }, 'call_1'), call('weather', { q: '2' }, 'call_2')]);
  const [, response] = await whole(await responses.create({ ...FAST, tools, stream: true }));
  same('calls', made(response), [['look_up', { q: '1' }], ['weather', { q: '2' }]]);
  same('two ids', new Set(calls(response).map((c) => c.call_id)).size, 2);
});

check('images', 'an image reaches the provider byte for byte', async () => {
  await says([text('A red pixel.')]);
  const image = { type: 'input_image', image_url: `data:image/png;base64,${PNG}`, detail: 'auto' };
  const content = [{ type: 'input_text', text: ASK }, image];
  const response = await responses.create({ model: 'fast', input: [{ role: 'user', content }] });
  same('text', response.output_text, 'A red pixel.');
  same('images', imagesAsked(await last()), [PNG]);
});

check('thinking', 'an effort makes the provider think; its thoughts and their tokens come', async () => {
  await says(answer([thinking(THOUGHT), text(TEXT)], { usage: USAGE_THINKING }));
  const reasoning = { effort: 'low', summary: 'auto' };
  const response = await responses.create({ model: 'smart', input: ASK, reasoning });
  same('thoughts', response.output[0].summary[0].text, THOUGHT);
  same('text', response.output_text, TEXT);
  usageIs(response.usage, UPSTREAM === 'anthropic' ? 0 : 3);
  holds('the provider was asked to think', thinksAsked(await last()));
});

check('structured output', 'responses.parse() with a zod schema', async () => {
  await says([text('{"name": "Z\u00fcrich", "people": 443037}')]);
  const format = zodTextFormat(z.object({ name: z.string(), people: z.number() }), 'city');
  const response = await responses.parse({ ...FAST, text: { format } });
  same('parsed', response.output_parsed, { name: 'Z\u00fcrich', people: 443037 });
});

check('streaming helpers', 'responses.stream(): events and the final response', async () => {
  await says(answer([text(TEXT), call('look_up', { q: 'x y' }, 'call_1')], { usage: USAGE }));
  const stream = responses.stream({ ...FAST, tools });
  let deltas = '';
  stream.on('response.output_text.delta', (event) => (deltas += event.delta));
  const final = await stream.finalResponse();
  same('deltas', deltas, TEXT);
  same('final text', textOf(final), TEXT);
  same('final call', made(final), [['look_up', { q: 'x y' }]]);
  usageIs(final.usage);
});

check('conversations', 'a response goes on from the one before by its id, and is there to be read and deleted', async () => {
  await says([text('Four.')], [text('Eight.')]);
  const first = await responses.create({ model: 'fast', input: 'two and two' });
  const second = await responses.create({ model: 'fast', input: 'doubled', previous_response_id: first.id });
  same('text', second.output_text, 'Eight.');
  if (UPSTREAM !== 'responses') {
    const asked = JSON.stringify((await last()).body);
    holds(`all of it arrived: ${asked}`, ['two and two', 'Four.', 'doubled'].every((t) => asked.includes(t)));
  }
  same('retrieved', textOf(await responses.retrieve(second.id)), 'Eight.');
  await responses.delete(second.id);
  await raises(NotFoundError, responses.retrieve(second.id));
  await raises(BadRequestError, responses.create({ ...FAST, previous_response_id: 'resp_none' }));
});

check('background', 'made by providers that have it, refused in front of others', async () => {
  await says([text('Later.')]);
  const asked = responses.create({ ...FAST, background: true });
  if (UPSTREAM === 'responses') same('text', (await asked).output_text, 'Later.');
  else await raises(BadRequestError, asked);
});

check('token counting', 'responses.inputTokens.count(), by the provider where it can', async () => {
  const counted = await responses.inputTokens.count({ ...FAST, tools });
  holds(`tokens: ${counted.input_tokens}`, counted.input_tokens > 0 && counted.input_tokens < 1000);
});

check('errors: 400', 'what the gateway can not read', async () => {
  const error = await raises(
    BadRequestError, responses.create({ model: 'fast', input: [{ role: 'nobody', content: 'x' }] }),
  );
  holds(`it is named: ${error.message}`, error.message.includes('nobody'));
});

check('errors: 401', 'a key the gateway does not know', async () => {
  const stranger = new OpenAI({ baseURL: `${GATEWAY}/v1`, apiKey: 'sk-no', maxRetries: 0 });
  await raises(AuthenticationError, stranger.responses.create(FAST));
});

check('errors: 404', 'a model the provider does not have', async () => {
  await raises(NotFoundError, responses.create({ model: 'missing', input: ASK }));
});

check('errors: 429', 'a limit, with when to come back', async () => {
  await breaks({ error: { rate_limit: { retry_after: '7', retry_info: '7s' } } });
  const error = await raises(RateLimitError, responses.create({ model: 'limited', input: ASK }));
  holds('retry-after', ['6', '7'].includes(error.headers.get('retry-after')));
});

check('errors: 5xx', 'retries used up, and an overloaded provider', async () => {
  for (const [fault, status] of [['server_error', 502], ['overloaded', 503]]) {
    await breaks({ error: fault });
    same('status', (await raises(InternalServerError, responses.create(FAST))).status, status);
  }
});

check('errors in a stream', 'what came before is delivered, then response.failed, once', async () => {
  for (const how of [{ error_event: 'overloaded' }, 'reset', 'end']) {
    await says([text('one two three four five six')]);
    await breaks({ break: { after_events: 3, how } });
    const events = [];
    for await (const event of await responses.create({ ...FAST, stream: true })) events.push(event);
    same('the last event', events.at(-1).type, 'response.failed');
    same('pieces', pieces(events, 'response.output_text.delta'), 'one two three four'.slice(0, 18));
    holds('a code and a message', events.at(-1).response.error.code && events.at(-1).response.error.message);
  }
});

check('SDK retries', "do not multiply with the gateway's", async () => {
  await breaks({ error: 'server_error' });
  await raises(InternalServerError, responses.create(FAST, { maxRetries: 3 }));
  same('requests to the provider', (await last()).number, 2);
});

check('cancellation', "leaving a stream, and a client's timeout, end the request at the provider", async () => {
  await says([text('one two three four five six')]);
  await breaks({ break: { after_events: 3, how: 'stall' } });
  for await (const event of await responses.create({ ...FAST, stream: true })) {
    if (event.type === 'response.output_text.delta') {
      same('under way', await inFlight(), 1);
      break;
    }
  }
  await gone();
  await breaks('hang');
  await raises(APIConnectionTimeoutError, responses.create(FAST, { timeout: 200 }));
  await gone();
});

const ENDS = ['response.completed', 'response.incomplete', 'response.failed'];

/** A socket, and what comes of it, for as long as it is used. */
async function connected(use, of = client) {
  const socket = new ResponsesWS(of);
  try {
    await use(socket, socket.stream());
  } finally {
    socket.close();
  }
}

/** The events of one answer over a socket; an error is thrown. */
async function answered(coming) {
  const events = [];
  for (;;) {
    const { value } = await coming.next();
    if (value.type === 'error') throw value.error;
    if (value.type === 'close') throw new Error(`closed: ${value.code} ${value.reason}`);
    if (value.type === 'message') events.push(value.message);
    if (ENDS.includes(events.at(-1)?.type)) return events;
  }
}

const create = (socket, input, asked = {}) =>
  socket.send({ type: 'response.create', model: 'fast', store: false, input, ...asked });

/** An answer that nobody stores. */
async function turn([socket, coming], input, asked) {
  create(socket, input, asked);
  const [events, response] = await whole(await answered(coming));
  same('the pieces', pieces(events, 'response.output_text.delta'), textOf(response));
  return response;
}

/** The error that is the whole answer to a request. */
async function refused([socket, coming], input, asked) {
  create(socket, input, asked);
  return (await raises(WebSocketError, answered(coming))).error;
}

/** The provider's last request had all of these in it, and no id that only the gateway knows. */
async function knows(...texts) {
  const asked = JSON.stringify((await last()).body);
  holds(`no id: ${asked}`, !asked.includes('previous_response_id'));
  holds(`all of it arrived: ${asked}`, texts.every((said) => asked.includes(said)));
}

check('websocket', 'turns of a conversation that nobody stores', () =>
  connected(async (...on) => {
    await says([text(TEXT)], [text('Eight.')], [text('Sixteen.')]);
    const first = await turn(on, 'two and two');
    const second = await turn(on, 'doubled', { previous_response_id: first.id });
    const third = await turn(on, 'and again', { previous_response_id: second.id });
    same('texts', [first, second, third].map(textOf), [TEXT, 'Eight.', 'Sixteen.']);
    await knows('two and two', 'doubled', 'Eight.', 'and again');
  }));

check('websocket', 'a call, and its output in the next turn', () =>
  connected(async (...on) => {
    await says([call('weather', { q: 'x' }, 'call_1')], [text('42 degrees.')]);
    const first = await turn(on, ASK, { tools });
    same('calls', made(first), [['weather', { q: 'x' }]]);
    const result = { type: 'function_call_output', call_id: calls(first)[0].call_id, output: '42' };
    const second = await turn(on, [result], { tools, previous_response_id: first.id });
    same('text', textOf(second), '42 degrees.');
    const arrived = resultsAsked(await last());
    holds(`the result arrived: ${arrived}`, arrived.length === 1 && arrived[0].includes('42'));
  }));

check('websocket', 'prepared by generate: false without an answer, and gone on from', () =>
  connected(async (...on) => {
    await says([text('Brief.')]);
    const before = (await seen()).length;
    const instructions = 'Be brief.';
    const prepared = await turn(on, 'a long story', { instructions, generate: false });
    same('output', [prepared.output, (await seen()).length - before], [[], 0]);
    const final = await turn(on, [], { instructions, previous_response_id: prepared.id });
    same('text', textOf(final), 'Brief.');
    await knows('a long story', 'Be brief.');
  }));

check('websocket', 'an error is an event, and the socket goes on: an unknown id, a provider that is down', () =>
  connected(async (...on) => {
    const unknown = await refused(on, ASK, { previous_response_id: 'resp_none' });
    same('unknown', [unknown.status, unknown.error.code], [400, 'previous_response_not_found']);
    await breaks({ error: 'server_error' }, { times: 2 });
    const down = await refused(on, ASK);
    same('down', [down.status, down.error.type], [502, 'server_error']);
    await says([text('Still here.')]);
    same('text', textOf(await turn(on, ASK)), 'Still here.');
  }));

check('websocket', 'a provider that fails between turns is asked again, and a stream that breaks goes on', () =>
  connected(async (...on) => {
    await says([text('Four.')], [text('Eight.')]);
    const first = await turn(on, 'two and two');
    await breaks({ error: 'server_error' }, { nth: 1 });
    const second = await turn(on, 'doubled', { previous_response_id: first.id });
    same('text', [textOf(second), (await last()).number], ['Eight.', 2]);
    await tale();
    await breaksOnce('reset', 2);
    same('text', textOf(await turn(on, ASK, { previous_response_id: second.id })), TALE);
    await knows('two and two', 'doubled');
  }));

check('websocket', 'a key the gateway does not know is refused before there is a socket', async () => {
  const stranger = new OpenAI({ baseURL: `${GATEWAY}/v1`, apiKey: 'sk-no', maxRetries: 0 });
  await connected(async (_, coming) => {
    const error = await raises(WebSocketError, answered(coming));
    holds(`its status: ${error.message}`, error.message.includes('401'));
  }, stranger);
});

none('async', 'all of it is');
none('models', 'as by its other API');
none('embeddings', 'as by its other API');

await run(await installed('openai'));
