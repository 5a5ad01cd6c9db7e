"""The `anthropic` SDK for Python against the gateway."""

import asyncio
import json

import anthropic
from anthropic._exceptions import GatewayTimeoutError, ServiceUnavailableError
from anthropic.types.thread_unsupported_request_error import ThreadUnsupportedRequestError
from pydantic import BaseModel

from common import *

client = anthropic.Anthropic(base_url=GATEWAY, api_key=KEY, max_retries=0)
messages = client.messages

ASK = [{"role": "user", "content": "What is it?"}]
MORE = {"max_tokens": 4000, "messages": ASK}
THINK = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


def asynchronous():
    return anthropic.AsyncAnthropic(base_url=GATEWAY, api_key=KEY, max_retries=0)


def tool(name):
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return {"name": name, "description": "Looks up.", "input_schema": schema}


TOOLS = [tool("look_up"), tool("weather")]


def usage_is(usage):
    same("input_tokens", usage.input_tokens, 11)
    same("cache_read_input_tokens", usage.cache_read_input_tokens, 5)
    same("output_tokens", usage.output_tokens, 7)


@check("chat", "text, usage, stop reason and the target that answered")
def _():
    says(answer(text(TEXT), usage=USAGE))
    raw = messages.with_raw_response.create(model="fast", **MORE)
    message = raw.parse()
    same("blocks", [block.type for block in message.content], ["text"])
    same("text", message.content[0].text, TEXT)
    same("stop_reason", message.stop_reason, "end_turn")
    same("role", message.role, "assistant")
    usage_is(message.usage)
    same("what the provider sent", last()["sent"]["text"], TEXT)
    same("target", raw.headers["x-steadfast-target"].split("/")[0], UPSTREAM)
    true("the request id is readable", message._request_id == raw.headers["x-request-id"])


@check("chat", "system prompt, several turns, limits; a cut answer says so")
def _():
    says(answer(text(TALE)))
    message = messages.create(
        model="fast",
        max_tokens=16,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Count."},
        ],
    )
    same("stop_reason", message.stop_reason, "max_tokens")
    entry = last()
    same("text", message.content[0].text, entry["sent"]["text"])
    true("the provider cut it", entry["sent"]["truncated"])
    true("the system prompt arrived", "Be brief." in json.dumps(entry["body"]))


@check("stream", "pieces make the text; usage and stop reason come last")
def _():
    says(answer(text(TEXT), usage=USAGE))
    pieces, reason, output, kinds = [], None, None, []
    for event in messages.create(model="fast", stream=True, **MORE):
        kinds.append(event.type)
        if event.type == "content_block_delta":
            pieces.append(event.delta.text)
        if event.type == "message_delta":
            reason, output = event.delta.stop_reason, event.usage.output_tokens
    same("text", "".join(pieces), TEXT)
    same("pieces", len(pieces), last()["events"])
    same("stop_reason", reason, "end_turn")
    same("output_tokens", output, 7)
    same("first and last", (kinds[0], kinds[-1]), ("message_start", "message_stop"))


@check("broken streams", "one that broke goes on: its text once and whole, its proper end")
def _():
    for how, after in (("reset", 2), ("end", 40), ({"error_event": "overloaded"}, 90)):
        tale()
        breaks_once(how, after)
        with messages.stream(model="fast", **MORE) as stream:
            for _event in stream:
                pass
        message = stream.get_final_message()
        same("text", "".join(block.text for block in message.content), TALE)
        same("stop_reason", message.stop_reason, "end_turn")
        same("requests to the provider", last()["number"], 2)


# Beyond an output limit that the caller set, the answer goes on only when that is asked for.
CONTINUE = {"x-steadfast-continue": "1"}


@check("cut answers", "one longer than its output limit arrives whole, in pieces and at once")
def _():
    tale()
    with messages.stream(model="fast", messages=ASK, max_tokens=700, extra_headers=CONTINUE) as stream:
        for _event in stream:
            pass
    message = stream.get_final_message()
    same("streamed", "".join(block.text for block in message.content), TALE)
    same("stop_reason", message.stop_reason, "end_turn")
    true("it was continued", last()["number"] > 1)
    tale()
    message = messages.create(model="fast", messages=ASK, max_tokens=700, extra_headers=CONTINUE)
    same("whole", "".join(block.text for block in message.content), TALE)
    same("stop_reason", message.stop_reason, "end_turn")


def result(block, content):
    return {"type": "tool_result", "tool_use_id": block.id, "content": content}


@check("tools", "a call, its result sent back, an answer that uses it")
def _():
    says([call("weather", {"q": "caf\u00e9"}, "call_1")], [text("It is 42 degrees.")])
    message = messages.create(model="fast", tools=TOOLS, **MORE)
    same("stop_reason", message.stop_reason, "tool_use")
    (made,) = message.content
    same("call", (made.type, made.name, made.input), ("tool_use", "weather", {"q": "caf\u00e9"}))
    history = [
        *ASK,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result(made, "42 degrees")]},
    ]
    final = messages.create(model="fast", max_tokens=400, tools=TOOLS, messages=history)
    same("text", final.content[0].text, "It is 42 degrees.")
    (arrived,) = results_asked(last())
    true(f"the result arrived: {arrived}", "42 degrees" in arrived)


@check("tools", "a call in a stream")
def _():
    says([text("Let me look."), call("look_up", {"q": "a b"}, "call_1")])
    said, name, arguments, reason = "", "", "", None
    for event in messages.create(model="fast", tools=TOOLS, stream=True, **MORE):
        if event.type == "content_block_start" and event.content_block.type == "tool_use":
            name += event.content_block.name
        if event.type == "content_block_delta":
            said += getattr(event.delta, "text", "")
            arguments += getattr(event.delta, "partial_json", "")
        if event.type == "message_delta":
            reason = event.delta.stop_reason
    same("text", said, "Let me look.")
    same("call", (name, json.loads(arguments)), ("look_up", {"q": "a b"}))
    same("stop_reason", reason, "tool_use")


@check("parallel tools", "two calls at once, both results sent back, whole and in a stream")
def _():
    for stream in (False, True):
        says(
            [call("look_up", {"q": "1"}, "call_1"), call("weather", {"q": "2"}, "call_2")],
            [text("Both.")],
        )
        if stream:
            with messages.stream(model="fast", tools=TOOLS, **MORE) as events:
                message = events.get_final_message()
        else:
            message = messages.create(model="fast", tools=TOOLS, **MORE)
        made = [(block.name, block.input) for block in message.content]
        same("calls", made, [("look_up", {"q": "1"}), ("weather", {"q": "2"})])
        true("two ids", len({block.id for block in message.content}) == 2)
        results = [result(block, f"result of {block.name}") for block in message.content]
        history = [
            *ASK,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
        final = messages.create(model="fast", max_tokens=400, tools=TOOLS, messages=history)
        same("text", final.content[0].text, "Both.")
        arrived = results_asked(last())
        same("results", len(arrived), 2)
        true(f"in order: {arrived}", "look_up" in arrived[0] and "weather" in arrived[1])


@check("images", "an image reaches the provider byte for byte")
def _():
    says([text("A red pixel.")])
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    message = messages.create(
        model="fast", max_tokens=400, messages=[{"role": "user", "content": content}]
    )
    same("text", message.content[0].text, "A red pixel.")
    same("images", images_asked(last()), [PNG])


@check("thinking", "thoughts come as blocks, signed by Anthropic's models only")
def _():
    says(answer(thinking(THOUGHT), text(TEXT), usage=USAGE_THINKING))
    message = messages.create(model="smart", **THINK, **MORE)
    same("blocks", [block.type for block in message.content], ["thinking", "text"])
    same("thoughts", message.content[0].thinking, THOUGHT)
    same("text", message.content[1].text, TEXT)
    entry = last()
    expected = entry["sent"]["signatures"][0] if UPSTREAM == "anthropic" else ""
    same("signature", message.content[0].signature, expected)
    usage_is(message.usage)
    true("the provider was asked to think", thinks_asked(entry))


@check("thinking", "thoughts in a stream, then a turn that sends them back with a tool's result")
def _():
    says(
        [thinking(THOUGHT), text("Let me look."), call("weather", {"q": "x"}, "call_1")],
        [thinking("Now I know."), text("42.")],
    )
    thoughts = ""
    with messages.stream(model="smart", tools=TOOLS, **THINK, **MORE) as events:
        for event in events:
            if event.type == "thinking":
                thoughts += event.thinking
        message = events.get_final_message()
    same("thoughts", thoughts, THOUGHT)
    same("blocks", [b.type for b in message.content], ["thinking", "text", "tool_use"])
    same("whole thoughts", message.content[0].thinking, THOUGHT)
    signatures = last()["sent"]["signatures"]
    history = [
        *ASK,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result(message.content[2], "42 degrees")]},
    ]
    final = messages.create(
        model="smart", max_tokens=4000, tools=TOOLS, messages=history, **THINK
    )
    same("text", final.content[-1].text, "42.")
    same("thoughts about the result", final.content[0].thinking, "Now I know.")
    if UPSTREAM == "anthropic":
        same("signatures sent back", signatures_asked(last()), signatures)
    true("the result arrived", "42 degrees" in results_asked(last())[0])


class City(BaseModel):
    name: str
    people: int


@check("structured output", "messages.parse() with a pydantic model")
def _():
    says([text('{"name": "Z\u00fcrich", "people": 443037}')])
    message = messages.parse(model="fast", output_format=City, **MORE)
    same("parsed", message.parsed_output, City(name="Z\u00fcrich", people=443037))
    true("the schema reached the provider", "people" in json.dumps(last()["body"]))


@check("streaming helpers", "messages.stream(): text_stream, events, the final message")
def _():
    says(answer(text(TEXT), usage=USAGE))
    with messages.stream(model="fast", **MORE) as events:
        said = list(events.text_stream)
        final = events.get_final_message()
    same("text_stream", "".join(said), TEXT)
    true("in pieces", len(said) > 3)
    same("final text", final.content[0].text, TEXT)
    same("stop_reason", final.stop_reason, "end_turn")
    usage_is(final.usage)

    says(answer(text("Let me look."), call("look_up", {"q": "x y"}, "call_1")))
    kinds, arguments = set(), None
    with messages.stream(model="fast", tools=TOOLS, **MORE) as events:
        for event in events:
            kinds.add(event.type)
            if event.type == "content_block_stop" and event.content_block.type == "tool_use":
                arguments = event.content_block.input
        same("get_final_text", events.get_final_text(), "Let me look.")
    same("arguments", arguments, {"q": "x y"})
    true(f"helper events: {kinds}", {"text", "input_json", "message_stop"} <= kinds)


@check("streaming helpers", "beta.messages.tool_runner() runs the tool and ends with the answer")
def _():
    @anthropic.beta_tool
    def weather(q: str) -> str:
        """The weather.

        Args:
            q: where
        """
        return f"42 degrees in {q}"

    says([call("weather", {"q": "Rome"}, "call_1")], [text("Warm.")])
    # It first tries a conversation kept by the server, is refused, and sends all messages instead.
    runner = client.beta.messages.tool_runner(
        model="fast", tools=[weather], max_tokens=400, messages=list(ASK)
    )
    final = runner.until_done()
    same("text", final.content[0].text, "Warm.")
    true("the result arrived", "42 degrees in Rome" in results_asked(last())[0])
    same("what was said before", texts_asked(last())[0], ("user", "What is it?"))


@check("streaming helpers", "a conversation kept by the server is refused, not answered without it")
def _():
    thread = client.beta.messages.thread(model="fast", max_tokens=400)
    error = raises(ThreadUnsupportedRequestError, thread.send, ASK[0])
    same("details", error.body["error"]["details"]["error_code"], "thread_unsupported_request")


@check("async", "chats at once, each with its own answer, and a stream")
async def _():
    async with asynchronous() as aio:
        answers = await asyncio.gather(
            *(aio.messages.create(model="fast", max_tokens=400,
                                  messages=[{"role": "user", "content": f"{n}"}])
              for n in range(8))
        )
        got = {a.content[0].text for a in answers}
        same("texts", got, {entry["sent"]["text"] for entry in seen()[-8:]})
        same("different texts", len(got), 8)
        says([text(TEXT)])
        said = ""
        async for event in await aio.messages.create(model="fast", stream=True, **MORE):
            if event.type == "content_block_delta":
                said += event.delta.text
        same("text", said, TEXT)
        says([text(TEXT)])
        async with aio.messages.stream(model="fast", **MORE) as events:
            said = "".join([piece async for piece in events.text_stream])
            final = await events.get_final_message()
        same("text by the helper", (said, final.content[0].text), (TEXT, TEXT))


@check("models", "the list, and one of them")
def _():
    ids = {model.id for model in client.models.list()}
    true(f"ids: {ids}", {"fast", "limited", "missing", "smart"} <= ids)
    same("one", client.models.retrieve("smart").id, "smart")
    error = raises(anthropic.NotFoundError, client.models.retrieve, "nowhere")
    true("it says where to look", "GET /v1/models" in str(error))


def told(error, status, kind, says=None):
    """Checks what every error of the SDK must have."""
    same("status_code", error.status_code, status)
    true("a request id", error.request_id and error.request_id.startswith("req_"))
    same("type", error.body["error"]["type"], kind)
    same("request_id in the body", error.body.get("request_id"), error.request_id)
    message = error.body["error"]["message"]
    if says:
        true(f"the message says {says!r}: {message}", says in message)
    return error


def refused(kind, **options):
    return raises(kind, messages.create, **{"model": "fast", **MORE, **options})


@check("errors: 400", "what the gateway can not read")
def _():
    error = refused(anthropic.BadRequestError, messages=[{"role": "nobody", "content": "x"}])
    told(error, 400, "invalid_request_error", "nobody")


@check("errors: 400", "what the provider refuses, in its own words where it is the same dialect")
def _():
    breaks({"error": "format"})
    error = refused(anthropic.BadRequestError)
    same("status_code", error.status_code, 400)
    same("type", error.body["error"]["type"], "invalid_request_error")
    true("a request id", error.request_id)
    same("requests to the provider", last()["number"], 1)


@check("errors: 401", "a key the gateway does not know")
def _():
    stranger = anthropic.Anthropic(base_url=GATEWAY, api_key="sk-no", max_retries=0)
    asked = len(seen())
    error = raises(anthropic.AuthenticationError, stranger.messages.create, model="fast", **MORE)
    told(error, 401, "authentication_error", "gateway key")
    raises(anthropic.AuthenticationError, stranger.models.list)
    same("requests to the provider", len(seen()), asked)


@check("errors: 404", "a model the provider does not have")
def _():
    error = refused(anthropic.NotFoundError, model="missing")
    same("type", error.body["error"]["type"], "not_found_error")
    same("status_code", error.status_code, 404)


def limited(**hints):
    breaks({"error": {"rate_limit": hints}})


@check("errors: 429", "a limit, with when to come back; until then the provider is left alone")
def _():
    limited(retry_after="7", retry_info="7s")
    for _ in range(2):
        error = refused(anthropic.RateLimitError, model="limited")
        told(error, 429, "rate_limit_error")
        headers = error.response.headers
        true(f"retry-after: {headers['retry-after']}", headers["retry-after"] in ("6", "7"))
        true("retry-after-ms", 5000 < int(headers["retry-after-ms"]) <= 7000)
    same("requests to the provider", last()["number"], 1)


@check("errors: 5xx", "retries used up: what happened and what was tried")
def _():
    breaks({"error": "server_error"})
    error = refused(anthropic.InternalServerError)
    told(error, 502, "api_error", f"Tried: {UPSTREAM}/")
    same("attempts", error.response.headers["x-steadfast-attempts"], "2")
    same("requests to the provider", last()["number"], 2)


@check("errors: 5xx", "an overloaded provider, an unreachable one, one that is too slow")
def _():
    for fault, status, kind, named, options in [
        ({"error": "overloaded"}, 503, ServiceUnavailableError, "overloaded_error", {}),
        ("reset", 502, anthropic.InternalServerError, "api_error", {}),
        ("hang", 504, GatewayTimeoutError, "timeout_error",
         {"extra_headers": {"x-steadfast-timeout-ms": "150"}}),
    ]:
        breaks(fault)
        told(refused(kind, **options), status, named)


@check("errors: 5xx", "a key of ours that the provider refuses is not the caller's 401")
def _():
    breaks({"error": "auth"})
    error = refused(ServiceUnavailableError)
    told(error, 503, "api_error", "An operator has to renew them")
    true("no key is told", "sk-" not in str(error))


@check("errors in a stream", "what came before is delivered, then the SDK's own error, once")
def _():
    for fault in ({"error_event": "overloaded"}, "reset", "end"):
        says([text("one two three four five six")])
        breaks({"break": {"after_events": 3, "how": fault}})
        got, kinds = "", []
        try:
            for event in messages.create(model="fast", stream=True, **MORE):
                kinds.append(event.type)
                if event.type == "content_block_delta":
                    got += event.delta.text
        except anthropic.APIStatusError as error:
            true("a request id", error.request_id and error.request_id.startswith("req_"))
            true(f"typed: {error.body}", error.body["error"]["type"].endswith("_error"))
            true(f"a message: {error.body}", error.body["error"]["message"])
        else:
            raise AssertionError(f"{fault}: no error; {got}")
        same("pieces", got, "one two three four"[:18])
        true(f"no terminal event: {kinds}", "message_stop" not in kinds)


@check("errors in a stream", "before the first piece it is a status, even for a stream")
def _():
    breaks({"error": "server_error"})
    told(refused(anthropic.InternalServerError, stream=True), 502, "api_error")


@check("SDK retries", "do not multiply with the gateway's")
def _():
    breaks({"error": "server_error"})
    eager = client.with_options(max_retries=3).messages
    raises(anthropic.InternalServerError, eager.create, model="fast", **MORE)
    same("requests to the provider", last()["number"], 2)


@check("SDK retries", "wait as long as the gateway says while the provider rests, then succeed")
def _():
    limited(retry_after_ms=600, retry_info="0.6s")
    refused(anthropic.RateLimitError, model="brief")
    breaks({"coalesce": {"frames": 1}})
    says([text("Rested.")])
    eager = client.with_options(max_retries=1).messages
    started = time.monotonic()
    message = eager.create(model="brief", **MORE)
    same("text", message.content[0].text, "Rested.")
    true("it waited", time.monotonic() - started > 0.2)
    same("requests to the provider", last()["number"], 1)


def stalls():
    says([text("one two three four five six")])
    breaks({"break": {"after_events": 3, "how": "stall"}})


@check("cancellation", "leaving a stream ends the request at the provider")
def _():
    stalls()
    with messages.create(model="fast", stream=True, **MORE) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                break
        same("under way", in_flight(), 1)
    gone()


@check("cancellation", "a client's timeout, and a cancelled task, end it too")
async def _():
    breaks("hang")
    await asyncio.to_thread(refused, anthropic.APITimeoutError, timeout=0.2)
    await asyncio.to_thread(gone)
    async with asynchronous() as aio:
        task = asyncio.create_task(aio.messages.create(model="fast", **MORE))
        await asyncio.to_thread(within, 5, "it to be under way", lambda: in_flight() == 1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        await asyncio.to_thread(gone)
        stalls()
        async with aio.messages.stream(model="fast", **MORE) as events:
            async for piece in events.text_stream:
                break
            same("under way", in_flight(), 1)
        await asyncio.to_thread(gone)


@check("token counting", "of the provider where it counts, else of the gateway")
def _():
    before = len(seen())
    ask = [{"role": "user", "content": TALE}]
    raw = messages.with_raw_response.count_tokens(model="fast", messages=ask)
    tokens, by = raw.parse().input_tokens, raw.headers["x-steadfast-counted"]
    if UPSTREAM == "openai":
        same("who counted", by, "gateway")
        true(f"{tokens} are about as many", 0.7 < tokens / counted(TALE) < 1.4)
    else:
        same("who counted", by, "provider")
        same("tokens", tokens, counted(TALE))
    same("generations", len(seen()) - before, 0)


none("embeddings", "its vendor has none")


none("conversations", "its API keeps none")
none("background", "its API keeps none")
none("websocket", "its API has none")


run(anthropic.__version__)
