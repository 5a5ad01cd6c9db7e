"""The `google-genai` SDK for Python against the gateway."""

import asyncio
import base64
import json
import warnings

from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from common import *

warnings.filterwarnings("ignore")


def sdk(key=KEY, **options):
    return genai.Client(
        api_key=key, http_options=types.HttpOptions(base_url=GATEWAY, **options)
    )


client = sdk()
ASK = "What is it?"
THINK = types.ThinkingConfig(include_thoughts=True, thinking_budget=2000)


def ask(model="fast", contents=ASK, on=client, **config):
    return on.models.generate_content(
        model=model, contents=contents, config=types.GenerateContentConfig(**config)
    )


def stream(model="fast", contents=ASK, on=client, **config):
    return on.models.generate_content_stream(
        model=model, contents=contents, config=types.GenerateContentConfig(**config)
    )


def tool(name):
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return types.FunctionDeclaration(
        name=name, description="Looks up.", parameters_json_schema=schema
    )


TOOLS = [types.Tool(function_declarations=[tool("look_up"), tool("weather")])]
BY_HAND = {
    "tools": TOOLS,
    "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
}


def usage_is(usage, thoughts=0):
    same("prompt_token_count", usage.prompt_token_count, 16)
    same("cached_content_token_count", usage.cached_content_token_count, 5)
    same("thoughts_token_count", usage.thoughts_token_count or 0, thoughts)
    same("candidates_token_count", usage.candidates_token_count, 7 - thoughts)
    same("total_token_count", usage.total_token_count, 23)


def user(*parts):
    return types.Content(role="user", parts=list(parts))


def told_back(made, result):
    return types.Part(
        function_response=types.FunctionResponse(id=made.id, name=made.name, response=result)
    )


@check("chat", "text, usage, stop reason and the target that answered")
def _():
    says(answer(text(TEXT), usage=USAGE))
    response = ask()
    same("text", response.text, TEXT)
    same("finish_reason", response.candidates[0].finish_reason, types.FinishReason.STOP)
    same("role", response.candidates[0].content.role, "model")
    usage_is(response.usage_metadata)
    same("what the provider sent", last()["sent"]["text"], TEXT)
    headers = response.sdk_http_response.headers
    same("target", headers["x-steadfast-target"].split("/")[0], UPSTREAM)
    true("the request id is readable", headers["x-request-id"].startswith("req_"))


@check("chat", "system prompt, several turns, limits; a cut answer says so")
def _():
    says(answer(text(TALE)))
    response = ask(
        contents=[
            user(types.Part(text="Hi.")),
            types.Content(role="model", parts=[types.Part(text="Hello.")]),
            user(types.Part(text="Count.")),
        ],
        system_instruction="Be brief.",
        max_output_tokens=16,
        temperature=0.5,
    )
    same("finish_reason", response.candidates[0].finish_reason, types.FinishReason.MAX_TOKENS)
    entry = last()
    same("text", response.text, entry["sent"]["text"])
    true("the provider cut it", entry["sent"]["truncated"])
    true("the system prompt arrived", "Be brief." in json.dumps(entry["body"]))


@check("stream", "pieces make the text; usage and stop reason come last")
def _():
    says(answer(text(TEXT), usage=USAGE))
    pieces, reason, usage = [], None, None
    for chunk in stream():
        pieces.append(chunk.text or "")
        reason = chunk.candidates[0].finish_reason if chunk.candidates else reason
        usage = chunk.usage_metadata or usage
    same("text", "".join(pieces), TEXT)
    same("pieces with text", len([p for p in pieces if p]), last()["events"])
    same("finish_reason", reason, types.FinishReason.STOP)
    usage_is(usage)


@check("broken streams", "one that broke goes on: its text once and whole, its proper end")
def _():
    for how, after in (("reset", 2), ("end", 40), ({"error_event": "overloaded"}, 90)):
        tale()
        breaks_once(how, after)
        pieces, reasons = [], []
        for chunk in stream():
            pieces.append(chunk.text or "")
            reasons += [c.finish_reason for c in chunk.candidates or [] if c.finish_reason]
        same("text", "".join(pieces), TALE)
        same("finish reasons", reasons, [types.FinishReason.STOP])
        same("requests to the provider", last()["number"], 2)


# Beyond an output limit that the caller set, the answer goes on only when that is asked for.
CONTINUE = types.HttpOptions(headers={"x-steadfast-continue": "1"})


@check("cut answers", "one longer than its output limit arrives whole, in pieces and at once")
def _():
    tale()
    chunks = list(stream(max_output_tokens=700, http_options=CONTINUE))
    same("streamed", "".join(chunk.text or "" for chunk in chunks), TALE)
    same("finish_reason", chunks[-1].candidates[0].finish_reason, types.FinishReason.STOP)
    true("it was continued", last()["number"] > 1)
    tale()
    response = ask(max_output_tokens=700, http_options=CONTINUE)
    same("whole", response.text, TALE)
    same("finish_reason", response.candidates[0].finish_reason, types.FinishReason.STOP)


@check("tools", "a call, its result sent back, an answer that uses it")
def _():
    says([call("weather", {"q": "caf\u00e9"}, "call_1")], [text("It is 42 degrees.")])
    response = ask(**BY_HAND)
    (made,) = response.function_calls
    same("call", (made.name, made.args), ("weather", {"q": "caf\u00e9"}))
    history = [
        user(types.Part(text=ASK)),
        response.candidates[0].content,
        user(told_back(made, {"result": "42 degrees"})),
    ]
    final = ask(contents=history, **BY_HAND)
    same("text", final.text, "It is 42 degrees.")
    (arrived,) = results_asked(last())
    true(f"the result arrived: {arrived}", "42 degrees" in arrived)


@check("tools", "a call in a stream")
def _():
    says([text("Let me look."), call("look_up", {"q": "a b"}, "call_1")])
    said, made = "", []
    for chunk in stream(**BY_HAND):
        for part in chunk.candidates[0].content.parts or [] if chunk.candidates else []:
            said += part.text or ""
            if part.function_call:
                made.append((part.function_call.name, part.function_call.args))
    same("text", said, "Let me look.")
    same("calls", made, [("look_up", {"q": "a b"})])


@check("parallel tools", "two calls at once, both results sent back, whole and in a stream")
def _():
    for streamed in (False, True):
        says(
            [call("look_up", {"q": "1"}, "call_1"), call("weather", {"q": "2"}, "call_2")],
            [text("Both.")],
        )
        if streamed:
            parts = []
            for chunk in stream(**BY_HAND):
                parts += (chunk.candidates[0].content.parts or []) if chunk.candidates else []
            content = types.Content(role="model", parts=[p for p in parts if p.function_call])
        else:
            content = ask(**BY_HAND).candidates[0].content
        calls = [part.function_call for part in content.parts]
        made = [(c.name, c.args) for c in calls]
        same("calls", made, [("look_up", {"q": "1"}), ("weather", {"q": "2"})])
        results = user(*(told_back(c, {"result": f"result of {c.name}"}) for c in calls))
        final = ask(contents=[user(types.Part(text=ASK)), content, results], **BY_HAND)
        same("text", final.text, "Both.")
        arrived = results_asked(last())
        same("results", len(arrived), 2)
        true(f"in order: {arrived}", "look_up" in arrived[0] and "weather" in arrived[1])


@check("images", "an image reaches the provider byte for byte")
def _():
    says([text("A red pixel.")])
    image = types.Part.from_bytes(data=base64.b64decode(PNG), mime_type="image/png")
    response = ask(contents=[image, "What is it?"])
    same("text", response.text, "A red pixel.")
    (arrived,) = images_asked(last())
    # The SDK writes URL-safe base64; Gemini accepts both alphabets, the others one.
    same("image", base64.b64decode(arrived.replace("-", "+").replace("_", "/")),
         base64.b64decode(PNG))
    if UPSTREAM != "gemini":
        same("base64", arrived, PNG)


def thoughts_of(content):
    return "".join(part.text for part in content.parts if part.thought and part.text)


@check("thinking", "thoughts come as parts, and their tokens are counted")
def _():
    says(answer(thinking(THOUGHT), text(TEXT), usage=USAGE_THINKING))
    response = ask(model="smart", thinking_config=THINK)
    same("thoughts", thoughts_of(response.candidates[0].content), THOUGHT)
    same("text", response.text, TEXT)
    # Anthropic does not report how much of its output was thinking.
    usage_is(response.usage_metadata, 0 if UPSTREAM == "anthropic" else 3)
    true("the provider was asked to think", thinks_asked(last()))


@check("thinking", "thoughts in a stream, then a turn that sends them back with a tool's result")
def _():
    says(
        [thinking(THOUGHT), text("Let me look."), call("weather", {"q": "x"}, "call_1")],
        [thinking("Now I know."), text("42.")],
    )
    parts = []
    for chunk in stream(model="smart", thinking_config=THINK, **BY_HAND):
        parts += (chunk.candidates[0].content.parts or []) if chunk.candidates else []
    content = types.Content(role="model", parts=parts)
    same("thoughts", thoughts_of(content), THOUGHT)
    (made,) = [part.function_call for part in parts if part.function_call]
    signatures = last()["sent"]["signatures"]
    history = [
        user(types.Part(text=ASK)), content, user(told_back(made, {"result": "42 degrees"})),
    ]
    final = ask(model="smart", contents=history, thinking_config=THINK, **BY_HAND)
    same("text", final.text, "42.")
    same("thoughts about the result", thoughts_of(final.candidates[0].content), "Now I know.")
    if UPSTREAM == "gemini":
        back = [base64.urlsafe_b64decode(s) for s in signatures_asked(last())]
        true("there was a signature", signatures)
        same("signatures sent back", back, [base64.b64decode(s) for s in signatures])
    true("the result arrived", "42 degrees" in results_asked(last())[0])


class City(BaseModel):
    name: str
    people: int


@check("structured output", "response_schema with a pydantic model, and JSON without a schema")
def _():
    city = '{"name": "Z\u00fcrich", "people": 443037}'
    says([text(city)], [text(city)])
    response = ask(response_mime_type="application/json", response_schema=City)
    same("parsed", response.parsed, City(name="Z\u00fcrich", people=443037))
    true("the schema reached the provider", "people" in json.dumps(last()["body"]))
    response = ask(response_mime_type="application/json")
    same("text", json.loads(response.text), {"name": "Z\u00fcrich", "people": 443037})


@check("streaming helpers", "chats keep the history, whole and in a stream")
def _():
    says([text("First.")], answer(text(TEXT)), [text("Third.")])
    chat = client.chats.create(model="fast")
    same("first", chat.send_message("One?").text, "First.")
    same("second", "".join(c.text or "" for c in chat.send_message_stream("Two?")), TEXT)
    same("third", chat.send_message("Three?").text, "Third.")
    turns = texts_asked(last())
    model = "model" if UPSTREAM == "gemini" else "assistant"
    if UPSTREAM == "gemini":
        # The SDK sends a streamed turn back in the chunks that it received; they are forwarded so.
        turns = [*turns[:3], (model, "".join(text for _, text in turns[3:-1])), turns[-1]]
    said = [("user", "One?"), (model, "First."), ("user", "Two?"), (model, TEXT), ("user", "Three?")]
    same("what the provider got", turns, said)


@check("streaming helpers", "automatic function calling runs the tool and ends with the answer")
def _():
    def weather(q: str) -> str:
        """The weather.

        Args:
            q: where
        """
        return f"42 degrees in {q}"

    for streamed in (False, True):
        says([call("weather", {"q": "Rome"}, "call_1")], [text("Warm.")])
        if streamed:
            said = "".join(chunk.text or "" for chunk in stream(tools=[weather]))
        else:
            said = ask(tools=[weather]).text
        same("text", said, "Warm.")
        true("the result arrived", "42 degrees in Rome" in results_asked(last())[0])


@check("async", "chats at once, each with its own answer, and a stream")
async def _():
    aio = sdk().aio
    answers = await asyncio.gather(
        *(aio.models.generate_content(model="fast", contents=f"{n}") for n in range(8))
    )
    got = {a.text for a in answers}
    same("texts", got, {entry["sent"]["text"] for entry in seen()[-8:]})
    same("different texts", len(got), 8)
    says([text(TEXT)], [text(TEXT)])
    said = ""
    async for chunk in await aio.models.generate_content_stream(model="fast", contents=ASK):
        said += chunk.text or ""
    same("text", said, TEXT)
    chat = aio.chats.create(model="fast")
    said = ""
    async for chunk in await chat.send_message_stream(ASK):
        said += chunk.text or ""
    same("text of a chat", said, TEXT)


@check("models", "the list, and one of them")
def _():
    names = {model.name for model in client.models.list()}
    true(f"names: {names}", {f"models/{m}" for m in ("fast", "limited", "smart")} <= names)
    same("one", client.models.get(model="smart").name, "models/smart")
    error = raises(errors.ClientError, client.models.get, model="nowhere")
    same("code", error.code, 404)


def told(error, code, status, says=None):
    """Checks what every error of the SDK must have."""
    same("code", error.code, code)
    same("status", error.status, status)
    true("a request id", error.response.headers["x-request-id"].startswith("req_"))
    true("a message", error.message)
    if says:
        true(f"the message says {says!r}: {error.message}", says in error.message)
    return error


@check("errors: 400", "what the gateway can not read")
def _():
    error = raises(errors.ClientError, ask,
                   contents=[{"role": "robot", "parts": [{"text": "x"}]}])
    told(error, 400, "INVALID_ARGUMENT", "robot")


@check("errors: 400", "what the provider refuses, in its own words where it is the same dialect")
def _():
    breaks({"error": "format"})
    error = told(raises(errors.ClientError, ask), 400, "INVALID_ARGUMENT")
    if UPSTREAM == "gemini":
        true(f"its words: {error.message}", "contents.parts must not be empty" in error.message)
    same("requests to the provider", last()["number"], 1)


@check("errors: 401", "a key the gateway does not know")
def _():
    stranger = sdk(key="sk-no")
    asked = len(seen())
    told(raises(errors.ClientError, ask, on=stranger), 401, "UNAUTHENTICATED", "gateway key")
    same("code", raises(errors.ClientError, stranger.models.list).code, 401)
    same("requests to the provider", len(seen()), asked)


@check("errors: 404", "a model the provider does not have")
def _():
    told(raises(errors.ClientError, ask, model="missing"), 404, "NOT_FOUND")


def limited(**hints):
    breaks({"error": {"rate_limit": hints}})


@check("errors: 429", "a limit, with when to come back; until then the provider is left alone")
def _():
    limited(retry_after="7", retry_info="7s")
    for _ in range(2):
        error = raises(errors.ClientError, ask, model="limited")
        told(error, 429, "RESOURCE_EXHAUSTED")
        headers = error.response.headers
        true(f"retry-after: {headers['retry-after']}", headers["retry-after"] in ("6", "7"))
        true("retry-after-ms", 5000 < int(headers["retry-after-ms"]) <= 7000)
    same("requests to the provider", last()["number"], 1)


@check("errors: 5xx", "retries used up: what happened and what was tried")
def _():
    breaks({"error": "server_error"})
    error = told(raises(errors.ServerError, ask), 502, "INTERNAL", f"Tried: {UPSTREAM}/")
    same("attempts", error.response.headers["x-steadfast-attempts"], "2")
    same("requests to the provider", last()["number"], 2)


@check("errors: 5xx", "an overloaded provider, an unreachable one, one that is too slow")
def _():
    slow = {"headers": {"x-steadfast-timeout-ms": "150"}}
    for fault, code, status, options in [
        ({"error": "overloaded"}, 503, "UNAVAILABLE", {}),
        ("reset", 502, "UNAVAILABLE", {}),
        ("hang", 504, "DEADLINE_EXCEEDED", {"http_options": types.HttpOptions(**slow)}),
    ]:
        breaks(fault)
        told(raises(errors.ServerError, ask, **options), code, status)


@check("errors: 5xx", "a key of ours that the provider refuses is not the caller's 401")
def _():
    breaks({"error": "auth"})
    error = raises(errors.ServerError, ask)
    told(error, 503, "UNAVAILABLE", "An operator has to renew them")
    true("no key is told", "sk-" not in str(error))


@check("errors in a stream", "what came before is delivered, then the SDK's own error, once")
def _():
    for fault in ({"error_event": "overloaded"}, "reset", "end"):
        says([text("one two three four five six")])
        breaks({"break": {"after_events": 3, "how": fault}})
        got, reasons = "", []
        try:
            for chunk in stream():
                got += chunk.text or ""
                reasons += [c.finish_reason for c in chunk.candidates if c.finish_reason]
        except Exception as error:
            exactly(errors.ServerError, error)
            true(f"a code: {error.code}", error.code in (502, 503))
            true(f"a status: {error.status}", error.status in ("INTERNAL", "UNAVAILABLE"))
            true(f"a message: {error.message}", error.message)
        else:
            raise AssertionError(f"{fault}: no error; {got}")
        same("pieces", got, "one two three four"[:18])
        same("finish reasons", reasons, [])


@check("errors in a stream", "before the first piece it is a status, even for a stream")
def _():
    breaks({"error": "server_error"})
    error = raises(errors.ServerError, lambda: list(stream()))
    told(error, 502, "INTERNAL")


RETRY = types.HttpRetryOptions(attempts=4, initial_delay=0.3, max_delay=0.3, jitter=0)


@check("SDK retries", "a rested provider is asked again (the SDK looks at the status only)")
def _():
    limited(retry_after_ms=400, retry_info="0.4s")
    raises(errors.ClientError, ask, model="brief")
    breaks({"coalesce": {"frames": 1}})
    says([text("Rested.")])
    response = ask(model="brief", on=sdk(retry_options=RETRY))
    same("text", response.text, "Rested.")
    same("requests to the provider", last()["number"], 1)


none("SDK retries", "it retries by status and does not look at `x-should-retry` or `retry-after`: "
     "with `retry_options` set (off by default) its retries multiply with the gateway's")


def stalls():
    says([text("one two three four five six")])
    breaks({"break": {"after_events": 3, "how": "stall"}})


@check("cancellation", "leaving a stream ends the request at the provider")
def _():
    stalls()
    chunks = stream()
    true("a piece came", next(chunks).text)
    same("under way", in_flight(), 1)
    chunks.close()
    gone()


@check("cancellation", "a client's timeout, and a cancelled task, end it too")
async def _():
    breaks("hang")
    impatient = sdk(timeout=200)
    try:
        await asyncio.to_thread(ask, on=impatient)
    except Exception as error:
        true(f"a timeout: {error!r}", "Timeout" in type(error).__name__)
    else:
        raise AssertionError("no timeout")
    await asyncio.to_thread(gone)
    aio = sdk().aio
    task = asyncio.create_task(aio.models.generate_content(model="fast", contents=ASK))
    await asyncio.to_thread(within, 5, "it to be under way", lambda: in_flight() == 1)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    await asyncio.to_thread(gone)
    stalls()
    begun = asyncio.Event()

    async def read():
        async for _ in await aio.models.generate_content_stream(model="fast", contents=ASK):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    same("under way", in_flight(), 1)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    await asyncio.to_thread(gone)


none("cancellation", "leaving an async stream early (`break`, `aclose()`) does not close the "
     "connection, without a gateway neither; cancel the task that reads it")


@check("token counting", "of the provider where it counts, else of the gateway")
def _():
    before = len(seen())
    tokens = client.models.count_tokens(model="fast", contents=TALE).total_tokens
    if UPSTREAM == "openai":
        true(f"{tokens} are about as many", 0.7 < tokens / counted(TALE) < 1.4)
    else:
        same("tokens", tokens, counted(TALE))
    same("generations", len(seen()) - before, 0)


CUT = {"break": {"after_bytes": 700, "how": "close"}}


def embeds(texts, dimensions):
    model = EMBED["gemini"]
    config = types.EmbedContentConfig(output_dimensionality=dimensions)
    answer = client.models.embed_content(model=model, contents=texts, config=config)
    same("vectors", len(answer.embeddings), len(texts))
    for at, one in enumerate(answer.embeddings):
        if one.values != vector(model, texts[at], dimensions):
            raise AssertionError(f"the vector of text {at} of {len(texts)} is another")
    same("the model asked", {entry["model"] for entry in seen() if "mbed" in entry["path"]}, {model})


if UPSTREAM == "gemini":

    @check("embeddings", "batches of 1 to 2,048, with dimensions")
    def _():
        for count in (1, 2, 7, 100):
            embeds(lines(count), 3072)
        embeds(lines(2048), 16)

    # The limit comes last: after it the model is left alone.
    for fault in ({"error": "server_error"}, CUT, {"error": {"rate_limit": {}}}):

        @check("embeddings", f"exact under {json.dumps(fault)}")
        def _(fault=fault):
            breaks(fault, nth=1)
            before = len(seen())
            embeds(lines(300), 32)
            same("requests of the provider", len(seen()) - before, 2)
else:
    none("embeddings", ONE_DIALECT)


none("conversations", "its API for them is another one")
none("background", "its API for them is another one")
none("websocket", "its API for them is another one")


run(genai.__version__)
