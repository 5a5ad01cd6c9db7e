// The `@anthropic-ai/sdk` SDK for Node against the gateway.

import Anthropic, {
  APIConnectionTimeoutError,
  APIError,
  APIUserAbortError,
  AuthenticationError,
  BadRequestError,
  GatewayTimeoutError,
  InternalServerError,
  NotFoundError,
  RateLimitError,
  ServiceUnavailableError,
} from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';
import {
  GATEWAY, KEY, PNG, TALE, TEXT, THOUGHT, UPSTREAM, USAGE, USAGE_THINKING,
  answer, breaks, breaksOnce, call, check, counted, exactly, gone, holds, imagesAsked, inFlight, installed, last, none,
  raises, resultsAsked, run, same, says, seen, signaturesAsked, tale, text, thinking, thinksAsked, within,
} from './common.mjs';

const client = new Anthropic({ baseURL: GATEWAY, apiKey: KEY, maxRetries: 0 });
const { messages } = client;
const ASK = [{ role: 'user', content: 'What is it?' }];
const FAST = { model: 'fast', max_tokens: 4000, messages: ASK };
const SMART = { ...FAST, model: 'smart', thinking: { type: 'enabled', budget_tokens: 2000 } };

const schema = { type: 'object', properties: { q: { type: 'string' } }, required: ['q'] };
const tool = (name) => ({ name, description: 'Looks up.', input_schema: schema });
const tools = [tool('look_up'), tool('weather')];
const result = (block, content) => ({ type: 'tool_result', tool_use_id: block.id, content });

function usageIs(usage) {
  same('input_tokens', usage.input_tokens, 11);
  same('cache_read_input_tokens', usage.cache_read_input_tokens, 5);
  same('output_tokens', usage.output_tokens, 7);
}

check('chat', 'text, usage, stop reason and the target that answered', async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const { data, response } = await messages.create(FAST).withResponse();
  same('blocks', data.content.map((b) => [b.type, b.text]), [['text', TEXT]]);
  same('stop_reason', data.stop_reason, 'end_turn');
  usageIs(data.usage);
  same('what the provider sent', (await last()).sent.text, TEXT);
  same('target', response.headers.get('x-steadfast-target').split('/')[0], UPSTREAM);
  holds('the request id is readable', data._request_id === response.headers.get('x-request-id'));
});

check('chat', 'system prompt, several turns, limits; a cut answer says so', async () => {
  await says([text(TALE)]);
  const message = await messages.create({
    model: 'fast',
    max_tokens: 16,
    system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
    messages: [
      { role: 'user', content: 'Hi.' },
      { role: 'assistant', content: 'Hello.' },
      { role: 'user', content: 'Count.' },
    ],
  });
  same('stop_reason', message.stop_reason, 'max_tokens');
  const entry = await last();
  same('text', message.content[0].text, entry.sent.text);
  holds('the provider cut it', entry.sent.truncated);
  holds('the system prompt arrived', JSON.stringify(entry.body).includes('Be brief.'));
});

check('stream', 'pieces make the text; usage and stop reason come last', async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const pieces = [];
  const kinds = [];
  let reason, output;
  for await (const event of await messages.create({ ...FAST, stream: true })) {
    kinds.push(event.type);
    if (event.type === 'content_block_delta') pieces.push(event.delta.text);
    if (event.type === 'message_delta') {
      reason = event.delta.stop_reason;
      output = event.usage.output_tokens;
    }
  }
  same('text', pieces.join(''), TEXT);
  same('pieces', pieces.length, (await last()).events);
  same('stop_reason', reason, 'end_turn');
  same('output_tokens', output, 7);
  same('first and last', [kinds[0], kinds.at(-1)], ['message_start', 'message_stop']);
});

check('broken streams', 'one that broke goes on: its text once and whole, its proper end', async () => {
  for (const [how, after] of [['reset', 2], ['end', 40], [{ error_event: 'overloaded' }, 90]]) {
    await tale();
    await breaksOnce(how, after);
    const message = await messages.stream(FAST).finalMessage();
    same('text', message.content.map((block) => block.text).join(''), TALE);
    same('stop_reason', message.stop_reason, 'end_turn');
    same('requests to the provider', (await last()).number, 2);
  }
});

// Beyond an output limit that the caller set, the answer goes on only when that is asked for.
const CONTINUE = { headers: { 'x-steadfast-continue': '1' } };

check('cut answers', 'one longer than its output limit arrives whole, in pieces and at once', async () => {
  await tale();
  const streamed = await messages.stream({ ...FAST, max_tokens: 700 }, CONTINUE).finalMessage();
  same('streamed', streamed.content.map((block) => block.text).join(''), TALE);
  same('stop_reason', streamed.stop_reason, 'end_turn');
  holds('it was continued', (await last()).number > 1);
  await tale();
  const whole = await messages.create({ ...FAST, max_tokens: 700 }, CONTINUE);
  same('whole', whole.content.map((block) => block.text).join(''), TALE);
  same('stop_reason', whole.stop_reason, 'end_turn');
});

check('tools', 'a call, its result sent back, an answer that uses it', async () => {
  await says([call('weather', { q: 'caf\u00e9' }, 'call_1')], [text('It is 42 degrees.')]);
  const message = await messages.create({ ...FAST, tools });
  same('stop_reason', message.stop_reason, 'tool_use');
  const [made] = message.content;
  same('call', [made.type, made.name, made.input], ['tool_use', 'weather', { q: 'caf\u00e9' }]);
  const final = await messages.create({
    ...FAST,
    tools,
    messages: [
      ...ASK,
      { role: 'assistant', content: message.content },
      { role: 'user', content: [result(made, '42 degrees')] },
    ],
  });
  same('text', final.content[0].text, 'It is 42 degrees.');
  const arrived = resultsAsked(await last());
  holds(`the result arrived: ${arrived}`, arrived.length === 1 && /42 degrees/.test(arrived[0]));
});

check('parallel tools', 'two calls at once, both results sent back, whole and in a stream', async () => {
  for (const stream of [false, true]) {
    await says(
      [call('look_up', { q: '1' }, 'call_1'), call('weather', { q: '2' }, 'call_2')],
      [text('Both.')],
    );
    const asked = { ...FAST, tools };
    const { content } = stream
      ? await messages.stream(asked).finalMessage()
      : await messages.create(asked);
    same('calls', content.map((b) => [b.name, b.input]),
      [['look_up', { q: '1' }], ['weather', { q: '2' }]]);
    same('ids', new Set(content.map((b) => b.id)).size, 2);
    const results = content.map((b) => result(b, `result of ${b.name}`));
    const history = [...ASK, { role: 'assistant', content }, { role: 'user', content: results }];
    const final = await messages.create({ ...asked, messages: history });
    same('text', final.content[0].text, 'Both.');
    const arrived = resultsAsked(await last());
    holds(`in order: ${arrived}`, /look_up/.test(arrived[0]) && /weather/.test(arrived[1]));
  }
});

check('images', 'an image reaches the provider byte for byte', async () => {
  await says([text('A red pixel.')]);
  const source = { type: 'base64', media_type: 'image/png', data: PNG };
  const content = [{ type: 'image', source }, { type: 'text', text: 'What is it?' }];
  const message = await messages.create({ ...FAST, messages: [{ role: 'user', content }] });
  same('text', message.content[0].text, 'A red pixel.');
  same('images', imagesAsked(await last()), [PNG]);
});

check('thinking', "thoughts come as blocks, signed by Anthropic's models only", async () => {
  await says(answer([thinking(THOUGHT), text(TEXT)], { usage: USAGE_THINKING }));
  const message = await messages.create(SMART);
  const [thought, said] = message.content;
  same('blocks', [thought.type, said.type], ['thinking', 'text']);
  same('thoughts', thought.thinking, THOUGHT);
  same('text', said.text, TEXT);
  const entry = await last();
  const signature = UPSTREAM === 'anthropic' ? entry.sent.signatures[0] : '';
  same('signature', thought.signature, signature);
  usageIs(message.usage);
  holds('the provider was asked to think', thinksAsked(entry));
});

check('thinking', "thoughts in a stream, then a turn that sends them back with a tool's result", async () => {
  await says(
    [thinking(THOUGHT), text('Let me look.'), call('weather', { q: 'x' }, 'call_1')],
    [thinking('Now I know.'), text('42.')],
  );
  let thoughts = '';
  const { content } = await messages
    .stream({ ...SMART, tools })
    .on('thinking', (delta) => (thoughts += delta))
    .finalMessage();
  same('thoughts', thoughts, THOUGHT);
  same('blocks', content.map((b) => b.type), ['thinking', 'text', 'tool_use']);
  same('whole thoughts', content[0].thinking, THOUGHT);
  const { signatures } = (await last()).sent;
  const final = await messages.create({
    ...SMART,
    tools,
    messages: [
      ...ASK,
      { role: 'assistant', content },
      { role: 'user', content: [result(content[2], '42 degrees')] },
    ],
  });
  same('text', final.content.at(-1).text, '42.');
  same('thoughts about the result', final.content[0].thinking, 'Now I know.');
  const entry = await last();
  if (UPSTREAM === 'anthropic') same('signatures sent back', signaturesAsked(entry), signatures);
  holds('the result arrived', /42 degrees/.test(resultsAsked(entry)[0]));
});

const City = z.object({ name: z.string(), people: z.number() });

check('structured output', 'messages.parse() with a zod schema', async () => {
  await says([text('{"name": "Z\u00fcrich", "people": 443037}')]);
  const message = await messages.parse({
    ...FAST, output_config: { format: zodOutputFormat(City) },
  });
  same('parsed', message.parsed_output, { name: 'Z\u00fcrich', people: 443037 });
  holds('the schema reached the provider', JSON.stringify((await last()).body).includes('people'));
});

check('streaming helpers', "messages.stream(): .on('text'), finalMessage(), finalText()", async () => {
  await says(answer([text(TEXT)], { usage: USAGE }));
  const pieces = [];
  const stream = messages.stream(FAST).on('text', (delta) => pieces.push(delta));
  const final = await stream.finalMessage();
  same('pieces', pieces.join(''), TEXT);
  same('final text', [final.content[0].text, await stream.finalText()], [TEXT, TEXT]);
  same('stop_reason', final.stop_reason, 'end_turn');
  usageIs(final.usage);
  holds('a request id', stream.request_id?.startsWith('req_'));

  await says([text('Let me look.'), call('look_up', { q: 'x y' }, 'call_1')]);
  let json = '';
  const blocks = [];
  await messages
    .stream({ ...FAST, tools })
    .on('inputJson', (delta) => (json += delta))
    .on('contentBlock', (block) => blocks.push(block.type))
    .done();
  same('inputJson', JSON.parse(json), { q: 'x y' });
  same('contentBlock', blocks, ['text', 'tool_use']);
});

check('streaming helpers', 'beta.messages.toolRunner() runs the tool and ends with the answer', async () => {
  await says([call('weather', { q: 'Rome' }, 'call_1')], [text('Warm.')]);
  const weather = betaTool({
    name: 'weather',
    description: 'The weather.',
    inputSchema: schema,
    run: ({ q }) => `42 degrees in ${q}`,
  });
  // It first tries a conversation kept by the server, is refused, and sends all messages instead.
  const final = await client.beta.messages
    .toolRunner({ ...FAST, messages: [...ASK], tools: [weather] })
    .runUntilDone();
  same('text', final.content[0].text, 'Warm.');
  holds('the result arrived', /42 degrees in Rome/.test(resultsAsked(await last())[0]));
});

check('async', 'chats at once, each with its own answer', async () => {
  const asked = Array.from({ length: 8 }, (_, n) =>
    messages.create({ ...FAST, messages: [{ role: 'user', content: `${n}` }] }));
  const got = (await Promise.all(asked)).map((a) => a.content[0].text).sort();
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
function told(error, status, type, says) {
  same('status', error.status, status);
  holds('a request id', error.requestID?.startsWith('req_'));
  same('type', error.error.error.type, type);
  const { message } = error.error.error;
  if (says) holds(`the message says ${says}: ${message}`, message.includes(says));
  return error;
}

check('errors: 400', 'what the gateway can not read', async () => {
  const asked = { ...FAST, messages: [{ role: 'nobody', content: 'x' }] };
  told(await raises(BadRequestError, messages.create(asked)), 400, 'invalid_request_error', 'nobody');
});

check('errors: 400', 'what the provider refuses, in its own words where it is the same dialect', async () => {
  await breaks({ error: 'format' });
  told(await raises(BadRequestError, messages.create(FAST)), 400, 'invalid_request_error');
  same('requests to the provider', (await last()).number, 1);
});

check('errors: 401', 'a key the gateway does not know', async () => {
  const stranger = client.withOptions({ apiKey: 'sk-no' });
  const asked = (await seen()).length;
  const error = await raises(AuthenticationError, stranger.messages.create(FAST));
  told(error, 401, 'authentication_error', 'gateway key');
  await raises(AuthenticationError, stranger.models.list());
  same('requests to the provider', (await seen()).length, asked);
});

check('errors: 404', 'a model the provider does not have', async () => {
  const error = await raises(NotFoundError, messages.create({ ...FAST, model: 'missing' }));
  told(error, 404, 'not_found_error');
});

check('errors: 429', 'a limit, with when to come back; until then the provider is left alone', async () => {
  await breaks({ error: { rate_limit: { retry_after: '7', retry_info: '7s' } } });
  for (let n = 0; n < 2; n++) {
    const error = await raises(RateLimitError, messages.create({ ...FAST, model: 'limited' }));
    told(error, 429, 'rate_limit_error');
    const after = error.headers.get('retry-after');
    holds(`retry-after: ${after}`, ['6', '7'].includes(after));
    const ms = Number(error.headers.get('retry-after-ms'));
    holds(`retry-after-ms: ${ms}`, ms > 5000 && ms <= 7000);
  }
  same('requests to the provider', (await last()).number, 1);
});

check('errors: 5xx', 'retries used up: what happened and what was tried', async () => {
  await breaks({ error: 'server_error' });
  const error = await raises(InternalServerError, messages.create(FAST));
  told(error, 502, 'api_error', `Tried: ${UPSTREAM}/`);
  same('attempts', error.headers.get('x-steadfast-attempts'), '2');
  same('requests to the provider', (await last()).number, 2);
});

check('errors: 5xx', 'an overloaded provider, an unreachable one, one that is too slow', async () => {
  const slow = { headers: { 'x-steadfast-timeout-ms': '150' } };
  for (const [fault, kind, status, type, options] of [
    [{ error: 'overloaded' }, ServiceUnavailableError, 503, 'overloaded_error'],
    ['reset', InternalServerError, 502, 'api_error'],
    ['hang', GatewayTimeoutError, 504, 'timeout_error', slow],
  ]) {
    await breaks(fault);
    told(await raises(kind, messages.create(FAST, options)), status, type);
  }
});

check('errors: 5xx', "a key of ours that the provider refuses is not the caller's 401", async () => {
  await breaks({ error: 'auth' });
  const error = await raises(ServiceUnavailableError, messages.create(FAST));
  told(error, 503, 'api_error', 'An operator has to renew them');
  holds('no key is told', !error.message.includes('sk-'));
});

check('errors in a stream', "what came before is delivered, then the SDK's own error, once", async () => {
  for (const how of [{ error_event: 'overloaded' }, 'reset', 'end']) {
    await says([text('one two three four five six')]);
    await breaks({ break: { after_events: 3, how } });
    let got = '';
    let error;
    try {
      for await (const event of await messages.create({ ...FAST, stream: true })) {
        if (event.type === 'content_block_delta') got += event.delta.text;
        holds('no terminal event', event.type !== 'message_stop');
      }
    } catch (raised) {
      error = raised;
    }
    exactly(APIError, error);
    holds(`a type: ${JSON.stringify(error.error)}`, error.error.error.type.endsWith('_error'));
    holds('a message', error.error.error.message);
    same('pieces', got, 'one two three four');
  }
});

check('errors in a stream', 'before the first piece it is a status, even for a stream', async () => {
  await breaks({ error: 'server_error' });
  const error = await raises(InternalServerError, messages.create({ ...FAST, stream: true }));
  told(error, 502, 'api_error');
});

check('SDK retries', "do not multiply with the gateway's", async () => {
  await breaks({ error: 'server_error' });
  const eager = client.withOptions({ maxRetries: 3 }).messages;
  await raises(InternalServerError, eager.create(FAST));
  same('requests to the provider', (await last()).number, 2);
});

check('SDK retries', 'wait as long as the gateway says while the provider rests, then succeed', async () => {
  const brief = { ...FAST, model: 'brief' };
  await breaks({ error: { rate_limit: { retry_after_ms: 600, retry_info: '0.6s' } } });
  await raises(RateLimitError, messages.create(brief));
  await breaks({ coalesce: { frames: 1 } });
  await says([text('Rested.')]);
  const started = performance.now();
  const eager = client.withOptions({ maxRetries: 1 }).messages;
  same('text', (await eager.create(brief)).content[0].text, 'Rested.');
  holds('it waited', performance.now() - started > 200);
  same('requests to the provider', (await last()).number, 1);
});

async function stalls() {
  await says([text('one two three four five six')]);
  await breaks({ break: { after_events: 3, how: 'stall' } });
}

check('cancellation', 'leaving a stream, and aborting one, ends the request at the provider', async () => {
  await stalls();
  for await (const event of await messages.create({ ...FAST, stream: true })) {
    if (event.type === 'content_block_delta') {
      same('under way', await inFlight(), 1);
      break;
    }
  }
  await gone();
  await stalls();
  const stream = messages.stream(FAST);
  stream.on('text', () => stream.abort());
  await raises(APIUserAbortError, stream.finalMessage());
  await gone();
});

check('cancellation', "an AbortController, and a client's timeout, end it too", async () => {
  await breaks('hang');
  const controller = new AbortController();
  const asked = messages.create(FAST, { signal: controller.signal });
  asked.catch(() => {});
  await within(5, 'it to be under way', async () => (await inFlight()) === 1);
  controller.abort();
  await raises(APIUserAbortError, asked);
  await gone();
  await raises(APIConnectionTimeoutError, messages.create(FAST, { timeout: 200 }));
  await gone();
});

check('token counting', 'of the provider where it counts, else of the gateway', async () => {
  const before = (await seen()).length;
  const ask = { model: 'fast', messages: [{ role: 'user', content: TALE }] };
  const { data, response } = await messages.countTokens(ask).withResponse();
  const by = response.headers.get('x-steadfast-counted');
  if (UPSTREAM === 'openai') {
    same('who counted', by, 'gateway');
    const share = data.input_tokens / counted(TALE);
    holds(`${data.input_tokens} are about as many`, share > 0.7 && share < 1.4);
  } else {
    same('who counted', by, 'provider');
    same('tokens', data.input_tokens, counted(TALE));
  }
  same('generations', (await seen()).length - before, 0);
});

none('embeddings', 'its vendor has none');

none('conversations', 'its API keeps none');
none('background', 'its API keeps none');
none('websocket', 'its API has none');

await run(await installed('@anthropic-ai/sdk'));
