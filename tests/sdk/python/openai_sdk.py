"""The `openai` SDK for Python against the gateway."""

import asyncio
import json

import openai
from pydantic import BaseModel

from common import *

client = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0)
chats = client.chat.completions

ASK = [{"role": "user", "content": "What is it?"}]


def asynchronous(**options):
    return openai.AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0, **options)


def tool(name):
    parameters = {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    }
    function = {"name": name, "description": "Looks up.", "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


TOOLS = [tool("look_up"), tool("weather")]


def usage_is(usage, thought=0):
    same("prompt_tokens", usage.prompt_tokens, 16)
    same("cached_tokens", usage.prompt_tokens_details.cached_tokens, 5)
    same("completion_tokens", usage.completion_tokens, 7)
    same("total_tokens", usage.total_tokens, 23)
    if thought:
        same("reasoning_tokens", usage.completion_tokens_details.reasoning_tokens, thought)


@check("chat", "text, usage, stop reason and the target that answered")
def _():
    says(answer(text(TEXT), usage=USAGE))
    raw = chats.with_raw_response.create(model="fast", messages=ASK)
    completion = raw.parse()
    same("text", completion.choices[0].message.content, TEXT)
    same("finish_reason", completion.choices[0].finish_reason, "stop")
    same("role", completion.choices[0].message.role, "assistant")
    usage_is(completion.usage)
    same("what the provider sent", last()["sent"]["text"], TEXT)
    same("target", raw.headers["x-steadfast-target"].split("/")[0], UPSTREAM)
    true("the request id is readable", completion._request_id == raw.headers["x-request-id"])


@check("chat", "system prompt, several turns, limits; a cut answer says so")
def _():
    says(answer(text(TALE)))
    completion = chats.create(
        model="fast",
        max_tokens=16,
        temperature=0.5,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Count."},
        ],
    )
    same("finish_reason", completion.choices[0].finish_reason, "length")
    entry = last()
    same("text", completion.choices[0].message.content, entry["sent"]["text"])
    true("the provider cut it", entry["sent"]["truncated"])
    true("the system prompt arrived", "Be brief." in json.dumps(entry["body"]))


@check("stream", "pieces make the text; usage and stop reason come last")
def _():
    says(answer(text(TEXT), usage=USAGE))
    pieces, reason, usage = [], None, None
    options = {"include_usage": True}
    for chunk in chats.create(model="fast", messages=ASK, stream=True, stream_options=options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    same("text", "".join(pieces), TEXT)
    same("pieces with text", len([p for p in pieces if p]), last()["events"])
    same("finish_reason", reason, "stop")
    usage_is(usage)


@check("broken streams", "one that broke goes on: its text once and whole, its proper end")
def _():
    for how, after in (("reset", 2), ("end", 40), ({"error_event": "overloaded"}, 90)):
        tale()
        breaks_once(how, after)
        pieces, reasons = [], []
        for chunk in chats.create(model="fast", messages=ASK, stream=True):
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                reasons += [choice.finish_reason] if choice.finish_reason else []
        same("text", "".join(pieces), TALE)
        same("finish reasons", reasons, ["stop"])
        same("requests to the provider", last()["number"], 2)


# Beyond an output limit that the caller set, the answer goes on only when that is asked for.
CONTINUE = {"x-steadfast-continue": "1"}


@check("cut answers", "one longer than its output limit arrives whole, in pieces and at once")
def _():
    tale()
    with chats.stream(model="fast", messages=ASK, max_tokens=700, extra_headers=CONTINUE) as stream:
        for _event in stream:
            pass
    choice = stream.get_final_completion().choices[0]
    same("streamed", (choice.message.content, choice.finish_reason), (TALE, "stop"))
    true("it was continued", last()["number"] > 1)
    tale()
    choice = chats.create(model="fast", messages=ASK, max_tokens=700, extra_headers=CONTINUE).choices[0]
    same("whole", (choice.message.content, choice.finish_reason), (TALE, "stop"))


def weather(messages, **options):
    """One turn that calls a tool, and one that uses the result."""
    says([call("weather", {"q": "caf\u00e9"}, "call_1")], [text("It is 42 degrees.")])
    message = chats.create(model="fast", messages=messages, tools=TOOLS, **options).choices[0]
    same("finish_reason", message.finish_reason, "tool_calls")
    (made,) = message.message.tool_calls
    same("name", made.function.name, "weather")
    same("arguments", json.loads(made.function.arguments), {"q": "caf\u00e9"})
    return message.message, made


@check("tools", "a call, its result sent back, an answer that uses it")
def _():
    message, made = weather(ASK)
    result = {"role": "tool", "tool_call_id": made.id, "content": "42 degrees"}
    final = chats.create(model="fast", messages=[*ASK, message, result], tools=TOOLS)
    same("text", final.choices[0].message.content, "It is 42 degrees.")
    (arrived,) = results_asked(last())
    true(f"the result arrived: {arrived}", "42 degrees" in arrived)


@check("tools", "a call in a stream")
def _():
    says([text("Let me look."), call("look_up", {"q": "a b"}, "call_1")])
    said, name, arguments, ids, reason = "", "", "", set(), None
    for chunk in chats.create(model="fast", messages=ASK, tools=TOOLS, stream=True):
        for choice in chunk.choices:
            said += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for delta in choice.delta.tool_calls or []:
                name += delta.function.name or ""
                arguments += delta.function.arguments or ""
                ids |= {delta.id} - {None}
    same("text", said, "Let me look.")
    same("call", (name, json.loads(arguments)), ("look_up", {"q": "a b"}))
    same("finish_reason", reason, "tool_calls")
    same("ids", len(ids), 1)


@check("parallel tools", "two calls at once, both results sent back, whole and in a stream")
def _():
    for stream in (False, True):
        says(
            [call("look_up", {"q": "1"}, "call_1"), call("weather", {"q": "2"}, "call_2")],
            [text("Both.")],
        )
        if stream:
            with chats.stream(model="fast", messages=ASK, tools=TOOLS) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = chats.create(model="fast", messages=ASK, tools=TOOLS).choices[0].message
        made = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]
        same("calls", made, [("look_up", {"q": "1"}), ("weather", {"q": "2"})])
        true("two ids", len({c.id for c in message.tool_calls}) == 2)
        results = [
            {"role": "tool", "tool_call_id": c.id, "content": f"result of {c.function.name}"}
            for c in message.tool_calls
        ]
        history = [*ASK, message.model_dump(exclude_none=True, exclude={"parsed"}), *results]
        final = chats.create(model="fast", messages=history, tools=TOOLS)
        same("text", final.choices[0].message.content, "Both.")
        arrived = results_asked(last())
        same("results", len(arrived), 2)
        true(f"in order: {arrived}", "look_up" in arrived[0] and "weather" in arrived[1])


@check("images", "an image reaches the provider byte for byte")
def _():
    says([text("A red pixel.")])
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    message = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}
    completion = chats.create(model="fast", messages=[message])
    same("text", completion.choices[0].message.content, "A red pixel.")
    same("images", images_asked(last()), [PNG])


@check("thinking", "reasoning_effort makes the provider think; its thoughts and their tokens come")
def _():
    says(answer(thinking(THOUGHT), text(TEXT), usage=USAGE_THINKING))
    completion = chats.create(model="smart", messages=ASK, reasoning_effort="low")
    message = completion.choices[0].message
    same("thoughts", message.reasoning_content, THOUGHT)
    same("text", message.content, TEXT)
    usage_is(completion.usage, thought=0 if UPSTREAM == "anthropic" else 3)
    true("the provider was asked to think", thinks_asked(last()))


@check("thinking", "thoughts in a stream, then a turn that sends them back with a tool's result")
def _():
    says(
        [thinking(THOUGHT), text("Let me look."), call("weather", {"q": "x"}, "call_1")],
        [text("42.")],
    )
    thoughts, said, made = "", "", None
    for chunk in chats.create(
        model="smart", messages=ASK, reasoning_effort="low", tools=TOOLS, stream=True
    ):
        for choice in chunk.choices:
            thoughts += getattr(choice.delta, "reasoning_content", None) or ""
            said += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                if delta.id:
                    made = {"id": delta.id, "type": "function", "function": delta.function}
                    made["function"] = {"name": delta.function.name, "arguments": ""}
                made["function"]["arguments"] += delta.function.arguments or ""
    same("thoughts", thoughts, THOUGHT)
    same("text", said, "Let me look.")
    history = [
        *ASK,
        {"role": "assistant", "content": said, "reasoning_content": thoughts, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": made["id"], "content": "42 degrees"},
    ]
    final = chats.create(model="smart", messages=history, reasoning_effort="low", tools=TOOLS)
    same("text", final.choices[0].message.content, "42.")
    true("the result arrived", "42 degrees" in results_asked(last())[0])


class City(BaseModel):
    name: str
    people: int


@check("structured output", "chat.completions.parse() with a pydantic model")
def _():
    says([text('{"name": "Z\u00fcrich", "people": 443037}')])
    completion = chats.parse(model="fast", messages=ASK, response_format=City)
    same("parsed", completion.choices[0].message.parsed, City(name="Z\u00fcrich", people=443037))
    true("the schema reached the provider", "people" in json.dumps(last()["body"]))


@check("streaming helpers", "chat.completions.stream(): events and the final completion")
def _():
    says(answer(text(TEXT), call("look_up", {"q": "x y"}, "call_1"), usage=USAGE))
    deltas, arguments, kinds = "", "", set()
    options = {"include_usage": True}
    with chats.stream(model="fast", messages=ASK, tools=TOOLS, stream_options=options) as events:
        for event in events:
            kinds.add(event.type)
            if event.type == "content.delta":
                deltas += event.delta
            if event.type == "tool_calls.function.arguments.done":
                arguments = event.parsed_arguments or event.arguments
        final = events.get_final_completion()
    same("deltas", deltas, TEXT)
    true(f"content.done came: {kinds}", "content.done" in kinds)
    same("arguments", arguments, {"q": "x y"})
    same("final text", final.choices[0].message.content, TEXT)
    made = final.choices[0].message.tool_calls[0].function
    same("final call", (made.name, json.loads(made.arguments)), ("look_up", {"q": "x y"}))
    usage_is(final.usage)


@check("async", "chats at once, each with its own answer, and a stream")
async def _():
    async with asynchronous() as aio:
        chats = aio.chat.completions
        answers = await asyncio.gather(
            *(chats.create(model="fast", messages=[{"role": "user", "content": f"{n}"}])
              for n in range(8))
        )
        got = {a.choices[0].message.content for a in answers}
        same("texts", got, {entry["sent"]["text"] for entry in seen()[-8:]})
        same("different texts", len(got), 8)
        says([text(TEXT)])
        said = ""
        async for chunk in await chats.create(model="fast", messages=ASK, stream=True):
            said += "".join(choice.delta.content or "" for choice in chunk.choices)
        same("text", said, TEXT)
        says([text(TEXT)])
        async with chats.stream(model="fast", messages=ASK) as events:
            final = await events.get_final_completion()
        same("text by the helper", final.choices[0].message.content, TEXT)


@check("models", "the list, and one of them")
def _():
    ids = {model.id for model in client.models.list()}
    true(f"ids: {ids}", {"fast", "limited", "missing", "smart"} <= ids)
    same("one", client.models.retrieve("smart").id, "smart")
    error = raises(openai.NotFoundError, client.models.retrieve, "nowhere")
    true("it says where to look", "GET /v1/models" in error.message)


def told(error, status, says=None):
    """Checks what every error of the SDK must have."""
    same("status_code", error.status_code, status)
    true("a request id", error.request_id and error.request_id.startswith("req_"))
    true("a message in the body", error.body["message"])
    if says:
        true(f"the message says {says!r}: {error.message}", says in error.message)
    return error


@check("errors: 400", "what the gateway can not read")
def _():
    told(
        raises(openai.BadRequestError, chats.create, model="fast",
               messages=[{"role": "nobody", "content": "x"}]),
        400, "nobody",
    )


@check("errors: 400", "what the provider refuses, in its own words where it is the same dialect")
def _():
    breaks({"error": "format"})
    error = told(raises(openai.BadRequestError, chats.create, model="fast", messages=ASK), 400)
    if UPSTREAM == "openai":
        same("code", error.code, "missing_required_parameter")
        same("param", error.param, "messages[0].content[0].type")
    same("type", error.type, "invalid_request_error")
    same("requests to the provider", last()["number"], 1)


@check("errors: 401", "a key the gateway does not know")
def _():
    stranger = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key="sk-no", max_retries=0)
    asked = len(seen())
    error = raises(openai.AuthenticationError, stranger.chat.completions.create,
                   model="fast", messages=ASK)
    told(error, 401, "gateway key")
    raises(openai.AuthenticationError, stranger.models.list)
    same("requests to the provider", len(seen()), asked)


@check("errors: 404", "a model the provider does not have")
def _():
    error = raises(openai.NotFoundError, chats.create, model="missing", messages=ASK)
    told(error, 404)


def limited(**hints):
    breaks({"error": {"rate_limit": hints}})


@check("errors: 429", "a limit, with when to come back; until then the provider is left alone")
def _():
    limited(retry_after="7", retry_info="7s")
    for n in range(2):
        error = raises(openai.RateLimitError, chats.create, model="limited", messages=ASK)
        told(error, 429)
        true(f"retry-after: {error.response.headers['retry-after']}",
             error.response.headers["retry-after"] in ("6", "7"))
        true("retry-after-ms", 5000 < int(error.response.headers["retry-after-ms"]) <= 7000)
    same("requests to the provider", last()["number"], 1)


@check("errors: 5xx", "retries used up: what happened and what was tried")
def _():
    breaks({"error": "server_error"})
    error = raises(openai.InternalServerError, chats.create, model="fast", messages=ASK)
    told(error, 502, f"Tried: {UPSTREAM}/")
    same("attempts", error.response.headers["x-steadfast-attempts"], "2")
    same("requests to the provider", last()["number"], 2)


@check("errors: 5xx", "an overloaded provider, an unreachable one, one that is too slow")
def _():
    for fault, status, options in [
        ({"error": "overloaded"}, 503, {}),
        ("reset", 502, {}),
        ("hang", 504, {"extra_headers": {"x-steadfast-timeout-ms": "150"}}),
    ]:
        breaks(fault)
        error = raises(openai.InternalServerError, chats.create, model="fast", messages=ASK,
                       **options)
        told(error, status)


@check("errors: 5xx", "a key of ours that the provider refuses is not the caller's 401")
def _():
    breaks({"error": "auth"})
    error = raises(openai.InternalServerError, chats.create, model="fast", messages=ASK)
    told(error, 503, "An operator has to renew them")
    true("no key is told", "sk-" not in str(error))


@check("errors in a stream", "what came before is delivered, then the SDK's own error, once")
def _():
    for fault in ({"error_event": "overloaded"}, "reset", "end"):
        says([text("one two three four five six")])
        breaks({"break": {"after_events": 3, "how": fault}})
        got = []
        try:
            for chunk in chats.create(model="fast", messages=ASK, stream=True):
                got += [c.delta.content for c in chunk.choices if c.delta.content]
                same("finish_reason", [c.finish_reason for c in chunk.choices if c.finish_reason], [])
        except Exception as error:
            exactly(openai.APIError, error)
            true(f"a message: {error.body}", error.message)
            true(f"a type: {error.body}", error.type)
        else:
            raise AssertionError(f"{fault}: no error; {got}")
        same("pieces", "".join(got), "one two three four"[:18])


@check("errors in a stream", "before the first piece it is a status, even for a stream")
def _():
    breaks({"error": "server_error"})
    error = raises(openai.InternalServerError, chats.create, model="fast", messages=ASK, stream=True)
    told(error, 502)


@check("SDK retries", "do not multiply with the gateway's")
def _():
    breaks({"error": "server_error"})
    eager = client.with_options(max_retries=3).chat.completions
    raises(openai.InternalServerError, eager.create, model="fast", messages=ASK)
    same("requests to the provider", last()["number"], 2)


@check("SDK retries", "wait as long as the gateway says while the provider rests, then succeed")
def _():
    limited(retry_after_ms=600, retry_info="0.6s")
    raises(openai.RateLimitError, chats.create, model="brief", messages=ASK)
    breaks({"coalesce": {"frames": 1}})
    says([text("Rested.")])
    eager = client.with_options(max_retries=1).chat.completions
    started = time.monotonic()
    completion = eager.create(model="brief", messages=ASK)
    same("text", completion.choices[0].message.content, "Rested.")
    true("it waited", time.monotonic() - started > 0.2)
    same("requests to the provider", last()["number"], 1)


def stalls():
    says([text("one two three four five six")])
    breaks({"break": {"after_events": 3, "how": "stall"}})


@check("cancellation", "leaving a stream ends the request at the provider")
def _():
    stalls()
    with chats.create(model="fast", messages=ASK, stream=True) as stream:
        for chunk in stream:
            if any(choice.delta.content for choice in chunk.choices):
                break
        same("under way", in_flight(), 1)
    gone()


@check("cancellation", "a client's timeout, and a cancelled task, end it too")
async def _():
    breaks("hang")
    await asyncio.to_thread(
        raises, openai.APITimeoutError, chats.create, model="fast", messages=ASK, timeout=0.2
    )
    await asyncio.to_thread(gone)
    async with asynchronous() as aio:
        task = asyncio.create_task(aio.chat.completions.create(model="fast", messages=ASK))
        await asyncio.to_thread(within, 5, "it to be under way", lambda: in_flight() == 1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        await asyncio.to_thread(gone)
        stalls()
        async with aio.chat.completions.stream(model="fast", messages=ASK) as events:
            async for event in events:
                if event.type == "content.delta":
                    break
            same("under way", in_flight(), 1)
        await asyncio.to_thread(gone)


none("token counting", "its endpoint is of the Responses API")


CUT = {"break": {"after_bytes": 700, "how": "close"}}


def embeds(texts, **more):
    model = EMBED["openai"]
    answer = client.embeddings.create(model=model, input=texts, **more)
    dimensions = more.get("dimensions", 1536)
    same("vectors", len(answer.data), len(texts))
    for at, one in enumerate(answer.data):
        same("index", one.index, at)
        if one.embedding != vector(model, texts[at], dimensions):
            raise AssertionError(f"the vector of text {at} of {len(texts)} is another")
    true("usage", answer.usage.prompt_tokens > 0)
    same("the model asked", {entry["model"] for entry in seen() if "mbed" in entry["path"]}, {model})


if UPSTREAM == "openai":

    @check("embeddings", "batches of 1 to 2,048, as base64 and as numbers, with dimensions")
    def _():
        for count in (1, 2, 7, 100):
            embeds(lines(count))
        # Unasked the SDK has base64 sent, and reads it.
        embeds(lines(2048), dimensions=16)
        same("encoding", last()["body"]["encoding_format"], "base64")
        embeds(lines(2048), dimensions=16, encoding_format="float")
        same("what the provider was asked", last()["body"]["dimensions"], 16)

    @check("embeddings", "asynchronous, and what is wrong with a text is raised")
    async def _():
        answer = await asynchronous().embeddings.create(model=EMBED["openai"], input="one")
        same("vector", answer.data[0].embedding, vector(EMBED["openai"], "one", 1536))
        error = raises(openai.BadRequestError, client.embeddings.create, model=EMBED["openai"], input="")
        true("the provider's own words", "'$.input' is invalid" in str(error))

    # The limit comes last: after it the model is left alone.
    for fault in ({"error": "server_error"}, CUT, {"error": {"rate_limit": {}}}):

        @check("embeddings", f"exact under {json.dumps(fault)}")
        def _(fault=fault):
            breaks(fault, nth=1)
            before = len(seen())
            embeds(lines(300), dimensions=32)
            same("requests of the provider", len(seen()) - before, 2)
else:
    none("embeddings", ONE_DIALECT)


none("conversations", "those are of the Responses API")
none("background", "those are of the Responses API")
none("websocket", "those are of the Responses API")


run(openai.__version__)
