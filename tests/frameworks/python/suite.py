"""The checks that every framework passes. A framework's script has an `Adapter` with its own ways for them.

Beside what `tests/sdk/python/common.py` wants, a script is started with
    FRAMEWORK_DIALECT   the dialect that it is to speak
    FRAMEWORK_FAST      the name of a model that answers
    FRAMEWORK_SMART     the name of one that thinks
    FRAMEWORK_LIMITED   the name of one whose limit lasts: one that has just answered would be asked for a minute
    FRAMEWORK_WAY       `direct`: SDK_GATEWAY is the provider itself
and prints, beside common's lines, `again` where a check holds but the framework had to ask more than once.
"""

import json
import os
import re
import signal
import urllib.request

import common
from common import (
    GATEWAY,
    PNG,
    TALE,
    TEXT,
    THOUGHT,
    UPSTREAM,
    breaks,
    call,
    images_asked,
    last,
    results_asked,
    same,
    says,
    seen,
    tale,
    text,
    thinking,
    thinks_asked,
    true,
)

DIALECT = os.environ["FRAMEWORK_DIALECT"]
FAST = os.environ["FRAMEWORK_FAST"]
SMART = os.environ["FRAMEWORK_SMART"]
LIMITED = os.environ["FRAMEWORK_LIMITED"]
DIRECT = os.environ["FRAMEWORK_WAY"] == "direct"

CITY = "Z\u00fcrich"
PERSON = {"name": "Ada", "age": 36}
# By which words clients know an overflow, and a limit.
OVERFLOW = {
    "openai": "maximum context length",
    "anthropic": "prompt is too long",
    "gemini": "exceeds the maximum number of tokens",
}
OVERFLOW["responses"] = OVERFLOW["openai"]
RATE_LIMIT = {"openai": "ate limit", "responses": "ate limit", "anthropic": "rate_limit_error", "gemini": "RESOURCE_EXHAUSTED"}


def asked():
    """How often the framework has asked for an answer."""
    if DIRECT:
        return len(seen())
    with urllib.request.urlopen(f"{GATEWAY}/metrics", timeout=10) as response:
        page = response.read().decode()
    found = re.findall(r"^steadfast_requests_total\{[^}]*\} (\d+)$", page, re.M)
    return sum(int(count) for count in found)


# How long a check may take, in seconds. Alone, some frameworks wait for a silent stream for ever.
LIMIT = 25


def over(*_):
    raise TimeoutError("not over in time")


def check(feature, name, limit=LIMIT):
    """A check that may take so many seconds."""

    def register(function):
        def limited():
            signal.signal(signal.SIGALRM, over)
            signal.alarm(limit)
            try:
                function()
            finally:
                signal.alarm(0)

        common.check(feature, name)(limited)
        return function

    return register


def unseen(feature, name, expected=1):
    """A check in which the provider fails, and the framework is not to notice."""

    def register(function):
        def counted():
            before = asked()
            function()
            times = asked() - before
            if times > expected:
                raise common.Again(f"it asked {times} times instead of {expected}")

        check(feature, name)(counted)
        return function

    return register


class Adapter:
    """What a framework's script fills in. `model` is a name."""

    version = "?"
    # Blocks with which the simulated model gives the structured answer.
    structured_blocks = [text(json.dumps(PERSON))]
    # Whether thoughts are shown.
    shows_thoughts = True

    def chat(self, model, prompt):
        """The text of an answer, and whether usage came with it."""
        raise NotImplementedError

    def stream(self, model, prompt):
        """The pieces of the text of a streamed answer."""
        raise NotImplementedError

    def tools(self, model, prompt, look_up, stream):
        """The final text of a run with the tool `look_up(city)`."""
        raise NotImplementedError

    def structured(self, model, prompt):
        """What it makes of an answer that has a name and an age, as a dict."""
        raise NotImplementedError

    def image(self, model, prompt, base64):
        """The text of an answer to a prompt with an image."""
        raise NotImplementedError

    def think(self, model, prompt):
        """The thoughts, and the text, of an answer."""
        raise NotImplementedError

    def with_key(self, key):
        """The same adapter with another key."""
        raise NotImplementedError

    def status(self, error):
        """The HTTP status that the framework's error has; `None` if it is no error of its own."""
        raise NotImplementedError


def raised(adapter, function, status, *words):
    try:
        got = function()
    except Exception as error:  # Each framework has classes of its own.
        found = adapter.status(error)
        if found is None:
            raise AssertionError(f"raised {type(error).__module__}.{type(error).__name__}: {error}") from error
        same("status", found, status)
        for word in words:
            true(f"`{word}` in {str(error)!r}", word in str(error))
        return
    raise AssertionError(f"nothing was raised, the answer was {got!r}"[:300])


def suite(adapter):
    """Registers all checks, and runs them."""

    @check("chat", "a whole answer, character by character, with usage")
    def _():
        says([text(TEXT)])
        got, usage = adapter.chat(FAST, "Say it.")
        same("text", got, TEXT)
        true("usage", usage)

    @check("stream", "a long answer in many pieces")
    def _():
        tale()
        pieces = adapter.stream(FAST, "Tell it.")
        same("text", "".join(pieces), TALE)
        true(f"{len(pieces)} pieces", len(pieces) > 10)

    def with_tool(stream):
        calls = []

        def look_up(city):
            calls.append(city)
            return "21 degrees"

        got = adapter.tools(FAST, "How warm is it?", look_up, stream)
        same("calls", calls, [CITY])
        same("text", got, "It is 21 degrees there.")
        true(f"the result reached it: {results_asked(last())}", "21 degrees" in "".join(results_asked(last())))

    calls = lambda: [[call("look_up", {"city": CITY}, "call_1")], [text("It is 21 degrees there.")]]

    for stream in (False, True):

        @check("tools", f"a tool is called and its result used, {'streamed' if stream else 'whole'}")
        def _(stream=stream):
            says(*calls())
            with_tool(stream)

    @check("structured output", "an object of a type of one's own")
    def _():
        says(adapter.structured_blocks)
        same("object", adapter.structured(FAST, "Who is it?"), PERSON)

    @check("image", "reaches the provider byte for byte")
    def _():
        says([text("A red pixel.")])
        same("text", adapter.image(FAST, "What is this?", PNG), "A red pixel.")
        same("images", images_asked(last()), [PNG])

    if adapter.shows_thoughts:

        @check("thinking", "is asked for, and its text shown")
        def _():
            says([thinking(THOUGHT), text("Two.")])
            thoughts, got = adapter.think(SMART, "How many?")
            same("text", got, "Two.")
            same("thoughts", thoughts, THOUGHT)
            true("asked for", thinks_asked(last()))

    else:

        @check("thinking", "is asked for")
        def _():
            says([thinking(THOUGHT), text("Two.")])
            _, got = adapter.think(SMART, "How many?")
            same("text", got, "Two.")
            true("asked for", thinks_asked(last()))

    @unseen("overloaded", "two refusals, then an answer, whole and streamed", 2)
    def _():
        breaks({"error": "overloaded"}, times=2)
        says([text(TEXT)])
        same("text", adapter.chat(FAST, "Say it.")[0], TEXT)
        breaks({"error": "overloaded"}, times=2)
        tale()
        same("text", "".join(adapter.stream(FAST, "Tell it.")), TALE)

    @unseen("rate limit", "with a hint of a second")
    def _():
        breaks({"error": {"rate_limit": {"retry_after": "1", "retry_info": "1s"}}}, times=1)
        says([text(TEXT)])
        same("text", adapter.chat(FAST, "Say it.")[0], TEXT)

    broken = [
        ("cut in text", "the connection is closed in the middle of a sentence", "close"),
        ("stall", "the stream stops and stays open", "stall"),
        ("error event", "an error in the middle of a sentence", {"error_event": "overloaded"}),
    ]
    for feature, name, how in broken:

        @unseen(feature, name)
        def _(how=how):
            tale()
            breaks({"break": {"after_events": 12, "how": how}}, times=1)
            same("text", "".join(adapter.stream(FAST, "Tell it.")), TALE)

    @unseen("cut in a call", "the connection is closed inside of the arguments", 2)
    def _():
        first, second = calls()
        says(first, first, second)
        how, after = ("truncated_json", 0) if UPSTREAM == "gemini" else ("close", 3)
        breaks({"break": {"after_events": after, "how": how}}, times=1)
        with_tool(True)

    @check("errors", "a model that is not there: 404")
    def _():
        raised(adapter, lambda: adapter.chat("no-such-model", "Hi."), 404, "no-such-model")

    # A simulated provider takes any key.
    if not DIRECT:

        @check("errors", "a wrong key: 401")
        def _():
            raised(adapter, lambda: adapter.with_key("wrong").chat(FAST, "Hi."), 401, "key")

    @check("errors", "a prompt that is too long: 400")
    def _():
        raised(adapter, lambda: adapter.chat(FAST, "word " * 1_200_000), 400, OVERFLOW[DIALECT])

    # LangChain for Gemini asks six times by itself, whatever it is told.
    @check("errors", "a limit that lasts: 429", 75)
    def _():
        breaks({"error": {"rate_limit": {"retry_after": "3600", "retry_info": "3600s"}}})
        raised(adapter, lambda: adapter.chat(LIMITED, "Hi."), 429, RATE_LIMIT[DIALECT])

    common.run(adapter.version)
