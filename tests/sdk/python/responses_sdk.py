"""The Responses API of the `openai` SDK for Python against the gateway."""

import asyncio
import json
import time

import openai
from openai.types.responses.responses_server_event import ResponseWsError
from pydantic import BaseModel
from websockets.exceptions import InvalidStatus

from common import *

client = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0)
responses = client.responses

ASK = "What is it?"


def asynchronous(**options):
    return openai.AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0, **options)


def tool(name):
    parameters = {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    }
    return {
        "type": "function", "name": name, "description": "Looks up.", "parameters": parameters,
        "strict": True,
    }


TOOLS = [tool("look_up"), tool("weather")]


def usage_is(usage, thought=0):
    same("input_tokens", usage.input_tokens, 16)
    same("cached_tokens", usage.input_tokens_details.cached_tokens, 5)
    same("output_tokens", usage.output_tokens, 7)
    same("total_tokens", usage.total_tokens, 23)
    if thought:
        same("reasoning_tokens", usage.output_tokens_details.reasoning_tokens, thought)


def calls(response):
    return [item for item in response.output if item.type == "function_call"]


def whole(events):
    """The response at the end of a stream, whose events are numbered without a gap."""
    events = list(events)
    same("numbers", [event.sequence_number for event in events], list(range(len(events))))
    same("the last event", events[-1].type, "response.completed")
    return events, events[-1].response


@check("chat", "text, usage, status and the target that answered")
def _():
    says(answer(text(TEXT), usage=USAGE))
    raw = responses.with_raw_response.create(model="fast", input=ASK)
    response = raw.parse()
    same("text", response.output_text, TEXT)
    same("status", response.status, "completed")
    true("an id", response.id.startswith("resp_"))
    usage_is(response.usage)
    same("what the provider sent", last()["sent"]["text"], TEXT)
    same("target", raw.headers["x-steadfast-target"].split("/")[0], UPSTREAM)


@check("chat", "instructions, several turns, limits; a cut answer says so")
def _():
    says(answer(text(TALE)))
    response = responses.create(
        model="fast",
        max_output_tokens=16,
        temperature=0.5,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Count."},
        ],
    )
    same("status", response.status, "incomplete")
    same("reason", response.incomplete_details.reason, "max_output_tokens")
    entry = last()
    same("text", response.output_text, entry["sent"]["text"])
    true("the provider cut it", entry["sent"]["truncated"])
    true("the instructions arrived", "Be brief." in json.dumps(entry["body"]))


@check("stream", "pieces make the text; each event has its number, and the last one all of it")
def _():
    says(answer(text(TEXT), usage=USAGE))
    events, response = whole(responses.create(model="fast", input=ASK, stream=True))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    same("text", "".join(pieces), TEXT)
    same("whole text", response.output_text, TEXT)
    usage_is(response.usage)


@check("broken streams", "one that broke goes on: its text once and whole, its proper end")
def _():
    for how, after in (("reset", 2), ("end", 40), ({"error_event": "overloaded"}, 90)):
        tale()
        breaks_once(how, after)
        events, response = whole(responses.create(model="fast", input=ASK, stream=True))
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        same("text", "".join(pieces), TALE)
        same("whole text", response.output_text, TALE)
        same("requests to the provider", last()["number"], 2)


# Beyond an output limit that the caller set, the answer goes on only when that is asked for.
CONTINUE = {"x-steadfast-continue": "1"}


@check("cut answers", "one longer than its output limit arrives whole, in pieces and at once")
def _():
    tale()
    asked = {"model": "fast", "input": ASK, "max_output_tokens": 700, "extra_headers": CONTINUE}
    _, response = whole(responses.create(stream=True, **asked))
    same("streamed", (response.output_text, response.status), (TALE, "completed"))
    true("it was continued", last()["number"] > 1)
    tale()
    response = responses.create(**asked)
    same("whole", (response.output_text, response.status), (TALE, "completed"))


@check("tools", "a call, its result sent back, an answer that uses it")
def _():
    says([call("weather", {"q": "caf\u00e9"}, "call_1")], [text("It is 42 degrees.")])
    response = responses.create(model="fast", input=ASK, tools=TOOLS)
    (made,) = calls(response)
    same("call", (made.name, json.loads(made.arguments)), ("weather", {"q": "caf\u00e9"}))
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "42 degrees"}
    history = [{"role": "user", "content": ASK}, *response.output, result]
    final = responses.create(model="fast", input=history, tools=TOOLS)
    same("text", final.output_text, "It is 42 degrees.")
    (arrived,) = results_asked(last())
    true(f"the result arrived: {arrived}", "42 degrees" in arrived)


@check("tools", "a call in a stream, and one of a custom tool")
def _():
    says([text("Let me look."), call("look_up", {"q": "a b"}, "call_1")])
    events, response = whole(responses.create(model="fast", input=ASK, tools=TOOLS, stream=True))
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    same("text", response.output_text, "Let me look.")
    same("arguments", json.loads("".join(pieces)), {"q": "a b"})
    (made,) = calls(response)
    same("call", (made.name, json.loads(made.arguments)), ("look_up", {"q": "a b"}))
    says([call("run", {"input": "ls -l"}, "call_1")])
    custom = {"type": "custom", "name": "run", "description": "Runs a command."}
    _, response = whole(responses.create(model="fast", input=ASK, tools=[custom], stream=True))
    made = response.output[-1]
    same("custom call", (made.type, made.name, made.input), ("custom_tool_call", "run", "ls -l"))


@check("parallel tools", "two calls at once, both results sent back, whole and in a stream")
def _():
    for stream in (False, True):
        says(
            [call("look_up", {"q": "1"}, "call_1"), call("weather", {"q": "2"}, "call_2")],
            [text("Both.")],
        )
        if stream:
            with responses.stream(model="fast", input=ASK, tools=TOOLS) as events:
                response = events.get_final_response()
        else:
            response = responses.create(model="fast", input=ASK, tools=TOOLS)
        made = [(c.name, json.loads(c.arguments)) for c in calls(response)]
        same("calls", made, [("look_up", {"q": "1"}), ("weather", {"q": "2"})])
        results = [
            {"type": "function_call_output", "call_id": c.call_id, "output": f"result of {c.name}"}
            for c in calls(response)
        ]
        # What the helper has parsed is no field of the API.
        output = [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
        history = [{"role": "user", "content": ASK}, *output, *results]
        final = responses.create(model="fast", input=history, tools=TOOLS)
        same("text", final.output_text, "Both.")
        arrived = results_asked(last())
        true(f"in order: {arrived}", "look_up" in arrived[0] and "weather" in arrived[1])


@check("images", "an image reaches the provider byte for byte")
def _():
    says([text("A red pixel.")])
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    message = {"role": "user", "content": [{"type": "input_text", "text": ASK}, image]}
    response = responses.create(model="fast", input=[message])
    same("text", response.output_text, "A red pixel.")
    same("images", images_asked(last()), [PNG])


@check("thinking", "an effort makes the provider think; its thoughts and their tokens come")
def _():
    says(answer(thinking(THOUGHT), text(TEXT), usage=USAGE_THINKING))
    asked = {"effort": "low", "summary": "auto"}
    response = responses.create(model="smart", input=ASK, reasoning=asked)
    same("thoughts", response.output[0].summary[0].text, THOUGHT)
    same("text", response.output_text, TEXT)
    usage_is(response.usage, thought=0 if UPSTREAM == "anthropic" else 3)
    true("the provider was asked to think", thinks_asked(last()))


@check("thinking", "thoughts in a stream, then a turn that sends them back with a tool's result")
def _():
    says(
        [thinking(THOUGHT), text("Let me look."), call("weather", {"q": "x"}, "call_1")],
        [text("42.")],
    )
    asked = {
        "model": "smart", "tools": TOOLS, "store": False, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    events, response = whole(responses.create(input=ASK, stream=True, **asked))
    pieces = [e.delta for e in events if e.type == "response.reasoning_summary_text.delta"]
    same("thoughts", "".join(pieces), THOUGHT)
    (made,) = calls(response)
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "42 degrees"}
    history = [{"role": "user", "content": ASK}, *response.output, result]
    final = responses.create(input=history, **asked)
    same("text", final.output_text, "42.")
    true("the result arrived", "42 degrees" in results_asked(last())[0])


class City(BaseModel):
    name: str
    people: int


@check("structured output", "responses.parse() with a pydantic model")
def _():
    says([text('{"name": "Z\u00fcrich", "people": 443037}')])
    response = responses.parse(model="fast", input=ASK, text_format=City)
    same("parsed", response.output_parsed, City(name="Z\u00fcrich", people=443037))
    true("the schema reached the provider", "people" in json.dumps(last()["body"]))


@check("streaming helpers", "responses.stream(): events and the final response")
def _():
    says(answer(text(TEXT), call("look_up", {"q": "x y"}, "call_1"), usage=USAGE))
    deltas, arguments, kinds = "", "", set()
    with responses.stream(model="fast", input=ASK, tools=TOOLS) as events:
        for event in events:
            kinds.add(event.type)
            if event.type == "response.output_text.delta":
                deltas += event.delta
                same("so far", event.snapshot, deltas)
            if event.type == "response.function_call_arguments.done":
                arguments = event.arguments
        final = events.get_final_response()
    same("deltas", deltas, TEXT)
    true(f"each part was done: {kinds}", "response.content_part.done" in kinds)
    same("arguments", json.loads(arguments), {"q": "x y"})
    same("final text", final.output_text, TEXT)
    usage_is(final.usage)


@check("conversations", "a response goes on from the one before by its id, and is there to be read and deleted")
def _():
    says([text("Four.")], [call("weather", {"q": "x"}, "call_1")], [text("Eight.")])
    first = responses.create(model="fast", input="two and two")
    second = responses.create(
        model="fast", input="doubled", previous_response_id=first.id, tools=TOOLS
    )
    (made,) = calls(second)
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "8"}
    third = responses.create(
        model="fast", input=[result], previous_response_id=second.id, tools=TOOLS
    )
    same("text", third.output_text, "Eight.")
    if UPSTREAM != "responses":
        asked = json.dumps(last()["body"])
        true(f"all of it arrived: {asked}", all(t in asked for t in ("two and two", "Four.", "doubled")))
    same("retrieved", responses.retrieve(third.id).output_text, "Eight.")
    responses.delete(third.id)
    error = raises(openai.NotFoundError, responses.retrieve, third.id)
    true(f"its message: {error}", "not found" in error.message)


@check("conversations", "compacted, and gone on with")
def _():
    says([text("They counted.")], [text("Nine.")])
    turns = [{"role": "user", "content": "four and four"}, {"role": "assistant", "content": "Eight."}]
    compacted = responses.compact(model="fast", input=turns)
    same("kinds", [item.type for item in compacted.output], ["message", "compaction"])
    more = {"role": "user", "content": "and one"}
    final = responses.create(model="fast", input=[*compacted.output, more], store=False)
    same("text", final.output_text, "Nine.")
    asked = json.dumps(last()["body"])
    true(f"the record arrived: {asked}", "They counted." in asked and "four and four" in asked)


@check("conversations", "an id that is not there")
def _():
    asked = {"model": "fast", "input": ASK, "previous_response_id": "resp_none"}
    error = raises(openai.BadRequestError, responses.create, **asked)
    if UPSTREAM == "responses":
        same("code", error.code, "previous_response_not_found")


@check("background", "made by providers that have it, refused in front of others")
def _():
    says([text("Later.")])
    if UPSTREAM == "responses":
        same("text", responses.create(model="fast", input=ASK, background=True).output_text, "Later.")
        return
    error = raises(openai.BadRequestError, responses.create, model="fast", input=ASK, background=True)
    true(f"it is named: {error}", "background" in error.message)


@check("async", "answers at once, each its own, and a stream")
async def _():
    async with asynchronous() as aio:
        answers = await asyncio.gather(
            *(aio.responses.create(model="fast", input=f"{n}") for n in range(8))
        )
        got = {answer.output_text for answer in answers}
        same("texts", got, {entry["sent"]["text"] for entry in seen()[-8:]})
        same("different texts", len(got), 8)
        says([text(TEXT)])
        deltas = ""
        async for event in await aio.responses.create(model="fast", input=ASK, stream=True):
            deltas += event.delta if event.type == "response.output_text.delta" else ""
        same("text", deltas, TEXT)
        says([text(TEXT)])
        async with aio.responses.stream(model="fast", input=ASK) as events:
            final = await events.get_final_response()
        same("text by the helper", final.output_text, TEXT)


@check("token counting", "responses.input_tokens.count(), by the provider where it can")
def _():
    counted = responses.input_tokens.count(model="fast", input=ASK, tools=TOOLS)
    true(f"tokens: {counted.input_tokens}", 0 < counted.input_tokens < 1000)
    longer = responses.input_tokens.count(model="fast", input=TALE, tools=TOOLS)
    true("a longer text has more", longer.input_tokens > counted.input_tokens)


def failed(error, status, says=None):
    """Checks what every error of the SDK must have."""
    same("status_code", error.status_code, status)
    true("a request id", error.request_id and error.request_id.startswith("req_"))
    true("a message in the body", error.body["message"])
    if says:
        true(f"the message says {says!r}: {error.message}", says in error.message)
    return error


@check("errors: 400", "what the gateway can not read, and what the provider refuses")
def _():
    nobody = [{"role": "nobody", "content": "x"}]
    failed(raises(openai.BadRequestError, responses.create, model="fast", input=nobody), 400, "nobody")
    breaks({"error": "format"})
    error = failed(raises(openai.BadRequestError, responses.create, model="fast", input=ASK), 400)
    same("type", error.type, "invalid_request_error")
    same("requests to the provider", last()["number"], 1)


@check("errors: 401", "a key the gateway does not know")
def _():
    stranger = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key="sk-no", max_retries=0).responses
    for ask in (
        lambda: stranger.create(model="fast", input=ASK),
        lambda: stranger.retrieve("resp_1"),
        lambda: stranger.input_tokens.count(model="fast", input=ASK),
    ):
        failed(raises(openai.AuthenticationError, ask), 401, "gateway key")


@check("errors: 404", "a model the provider does not have")
def _():
    failed(raises(openai.NotFoundError, responses.create, model="missing", input=ASK), 404)


def limited(**hints):
    breaks({"error": {"rate_limit": hints}})


@check("errors: 429", "a limit, with when to come back")
def _():
    limited(retry_after="7", retry_info="7s")
    error = raises(openai.RateLimitError, responses.create, model="limited", input=ASK)
    failed(error, 429)
    true("retry-after", error.response.headers["retry-after"] in ("6", "7"))


@check("errors: 5xx", "retries used up, an overloaded provider, and one that is too slow")
def _():
    slow = {"extra_headers": {"x-steadfast-timeout-ms": "150"}}
    for fault, status, options in [
        ({"error": "server_error"}, 502, {}),
        ({"error": "overloaded"}, 503, {}),
        ("reset", 502, {}),
        ("hang", 504, slow),
    ]:
        breaks(fault)
        error = raises(
            openai.InternalServerError, responses.create, model="fast", input=ASK, **options
        )
        failed(error, status)


@check("errors in a stream", "what came before is delivered, then response.failed, once")
def _():
    for fault in ({"error_event": "overloaded"}, "reset", "end"):
        says([text("one two three four five six")])
        breaks({"break": {"after_events": 3, "how": fault}})
        events = list(responses.create(model="fast", input=ASK, stream=True))
        same("the last event", events[-1].type, "response.failed")
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        same("pieces", "".join(pieces), "one two three four"[:18])
        error = events[-1].response.error
        true(f"a code and a message: {error}", error.code and error.message)


@check("errors in a stream", "before the first piece it is a status, even for a stream")
def _():
    breaks({"error": "server_error"})
    asked = {"model": "fast", "input": ASK, "stream": True}
    failed(raises(openai.InternalServerError, responses.create, **asked), 502)


@check("SDK retries", "do not multiply with the gateway's")
def _():
    breaks({"error": "server_error"})
    eager = client.with_options(max_retries=3).responses
    raises(openai.InternalServerError, eager.create, model="fast", input=ASK)
    same("requests to the provider", last()["number"], 2)


def stalls():
    says([text("one two three four five six")])
    breaks({"break": {"after_events": 3, "how": "stall"}})


@check("cancellation", "leaving a stream, and a client's timeout, end the request at the provider")
def _():
    stalls()
    with responses.create(model="fast", input=ASK, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        same("under way", in_flight(), 1)
    gone()
    breaks("hang")
    raises(openai.APITimeoutError, responses.create, model="fast", input=ASK, timeout=0.2)
    gone()


ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def answered(socket):
    """The events of one answer over a socket."""
    events = [socket.recv()]
    while events[-1].type not in ENDS:
        events.append(socket.recv())
    return events


def turn(socket, input, **asked):
    """An answer that nobody stores: its text, and the response."""
    socket.response.create(model="fast", store=False, input=input, **asked)
    events, response = whole(answered(socket))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    same("the pieces", "".join(pieces), response.output_text)
    return response


def refused(socket, **asked):
    """The error that is the whole answer to a request."""
    socket.response.create(store=False, **{"model": "fast", "input": ASK, **asked})
    (event,) = answered(socket)
    return exactly(ResponseWsError, event)


def knows(*texts):
    """The provider's last request had all of these in it, and no id that only the gateway knows."""
    body = last()["body"]
    true(f"no id: {body}", "previous_response_id" not in body)
    asked = json.dumps(body)
    true(f"all of it arrived: {asked}", all(said in asked for said in texts))


@check("websocket", "turns of a conversation that nobody stores")
def _():
    says([text(TEXT)], [text("Eight.")], [text("Sixteen.")])
    with responses.connect() as socket:
        first = turn(socket, "two and two")
        second = turn(socket, "doubled", previous_response_id=first.id)
        third = turn(socket, "and again", previous_response_id=second.id)
        texts = [response.output_text for response in (first, second, third)]
        same("texts", texts, [TEXT, "Eight.", "Sixteen."])
        knows("two and two", "doubled", "Eight.", "and again")
        # A turn may go on from any before it.
        says([text("Five.")])
        turn(socket, "plus one", previous_response_id=first.id)
        true("not of another branch", "doubled" not in json.dumps(last()["body"]))


@check("websocket", "a call, and its output in the next turn")
def _():
    says([thinking(THOUGHT), call("weather", {"q": "x"}, "call_1")], [text("42 degrees.")])
    asked = {"tools": TOOLS, "include": ["reasoning.encrypted_content"]}
    with responses.connect() as socket:
        first = turn(socket, ASK, **asked)
        (made,) = calls(first)
        same("call", (made.name, json.loads(made.arguments)), ("weather", {"q": "x"}))
        result = {"type": "function_call_output", "call_id": made.call_id, "output": "42"}
        second = turn(socket, [result], previous_response_id=first.id, **asked)
    same("text", second.output_text, "42 degrees.")
    (arrived,) = results_asked(last())
    true(f"the result arrived: {arrived}", "42" in arrived)
    knows(ASK, "weather")


@check("websocket", "prepared by generate=False without an answer, and gone on from")
def _():
    says([text("Brief.")])
    with responses.connect() as socket:
        before = len(seen())
        prepared = turn(socket, "a long story", instructions="Be brief.", generate=False)
        same("output", (prepared.output, len(seen()) - before), ([], 0))
        final = turn(socket, [], instructions="Be brief.", previous_response_id=prepared.id)
    same("text", final.output_text, "Brief.")
    knows("a long story", "Be brief.")


@check("websocket", "an error is an event, and the socket goes on: an unknown id, a bad request, a provider that is down")
def _():
    with responses.connect() as socket:
        unknown = refused(socket, previous_response_id="resp_none")
        same("unknown", (unknown.status, unknown.error.code), (400, "previous_response_not_found"))
        bad = refused(socket, input=[{"role": "nobody", "content": "x"}])
        true(f"bad: {bad}", bad.status == 400 and "nobody" in bad.error.message)
        missing = refused(socket, model="missing")
        same("missing", missing.status, 404)
        breaks({"error": "server_error"}, times=2)
        down = refused(socket)
        same("down", (down.status, down.error.type), (502, "server_error"))
        says([text("Still here.")])
        same("text", turn(socket, ASK).output_text, "Still here.")


@check("websocket", "a provider that fails between turns is asked again, and a stream that breaks goes on")
def _():
    with responses.connect() as socket:
        says([text("Four.")])
        first = turn(socket, "two and two")
        says([text("Eight.")])
        breaks({"error": "server_error"}, nth=1)
        second = turn(socket, "doubled", previous_response_id=first.id)
        same("text", (second.output_text, last()["number"]), ("Eight.", 2))
        tale()
        breaks_once("reset", 2)
        same("text", turn(socket, ASK, previous_response_id=second.id).output_text, TALE)
        knows("two and two", "doubled")


@check("websocket", "answers at once, each with its stream_id, on a socket of asyncio")
async def _():
    async with asynchronous() as aio, aio.responses.connect() as socket:
        for id in "abc":
            await socket.response.create(model="fast", store=False, input=id, stream_id=id)
        ended = []
        while len(ended) < 3:
            event = await socket.recv()
            true(f"its stream: {event}", event.stream_id in "abc")
            if event.type in ENDS:
                same("end", event.type, "response.completed")
                ended.append(event.stream_id)
        same("ended", sorted(ended), ["a", "b", "c"])


@check("websocket", "a key the gateway does not know is refused before there is a socket")
def _():
    stranger = openai.OpenAI(base_url=f"{GATEWAY}/v1", api_key="sk-no", max_retries=0).responses
    error = raises(InvalidStatus, stranger.connect().enter)
    same("status", error.response.status_code, 401)


none("models", "as by its other API")
none("embeddings", "as by its other API")

run(openai.__version__)
