"""What the scripts of all SDKs share: the provider's side of a check, and the list of checks.

A script is started with
    SDK_GATEWAY   the gateway, http://host:port
    SDK_KEY       a tenant's key
    SDK_UPSTREAM  the dialect of the one provider behind it
    SDK_CONTROL   that provider's control (`steadfast sim --control`)
and prints one line a check: `ok`, `fail` or `none` (the SDK has no such thing), tab, the feature,
tab, the check, and for `fail` and `none` a tab and why.
"""

import asyncio
import hashlib
import inspect
import json
import os
import re
import signal
import struct
import sys
import time
import traceback
import urllib.request

# None has a value in the scripts of the clouds (`clouds.py`), which have no gateway.
GATEWAY = os.environ.get("SDK_GATEWAY")
KEY = os.environ.get("SDK_KEY")
UPSTREAM = os.environ.get("SDK_UPSTREAM")
CONTROL = os.environ.get("SDK_CONTROL")

# One red pixel.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM"
    "IQAAAABJRU5ErkJggg=="
)
# Text that is easily broken: multi-byte characters, a line end, quotes, a tab.
TEXT = 'Na\u00efve \u65e5\u672c \U0001f980 \u2014 "quoted",\r\n\ttabbed, and done.'
THOUGHT = "Step one.\nThen caf\u00e9, then two."
# Long enough for breaks and cuts in the middle; no sentence is like another.
TALE = " ".join(
    f"On night {n} the keeper saw {n * n + 1} moths, {n * 13} ships and na\u00efve star {n * 7}."
    for n in range(1, 61)
)
# Tokens that the provider reports; those read from the cache are separate.
USAGE = {"input": 11, "output": 7, "cache_read": 5}
USAGE_THINKING = {"input": 11, "output": 7, "cache_read": 5, "reasoning": 3}


# The provider.


def _control(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{CONTROL}/{path}", data=data, method=method)
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read()


def says(*answers):
    """What the provider answers next: each a list of blocks, or a whole answer."""
    _control("PUT", "script", [a if isinstance(a, dict) else answer(*a) for a in answers])


def answer(*blocks, **fields):
    return {"blocks": list(blocks), "chunks": 6, **fields}


def text(value):
    return {"text": value}


def thinking(value):
    return {"thinking": value}


def call(name, arguments, id):
    return {"tool_call": {"id": id, "name": name, "arguments": json.dumps(arguments)}}


def breaks(fault, **rule):
    """Sets the fault of every request from now on."""
    _control("PUT", "faults", {"rules": [{**rule, "fault": fault}]})


def tale(**fields):
    """The provider answers with `TALE`, and continues it when asked to."""
    says({"blocks": [text(TALE)], "chunks": 24, "goes_on": "faithful", **fields})


def breaks_once(how, after):
    """The next stream breaks after so many events; the ones that follow do not."""
    breaks({"break": {"after_events": after, "how": how}}, nth=1)


def seen():
    """Every generation request that the provider received."""
    return [entry for entry in json.loads(_control("GET", "journal")) if entry["number"]]


def last():
    """The newest request that the provider received, once it has ended."""
    entry = within(5, "the provider's last request to end", lambda: _ended(seen()[-1]))
    return entry


def _ended(entry):
    return entry if entry["end"] != "open" else None


def within(seconds, what, look):
    """Waits for a result of `look`, and returns it."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.01)


def in_flight():
    """The gateway's count of requests in flight."""
    with urllib.request.urlopen(f"{GATEWAY}/metrics", timeout=10) as response:
        page = response.read().decode()
    return int(re.search(r"^steadfast_in_flight (\d+)$", page, re.M).group(1))


def gone():
    """Waits until the gateway has no request in flight and the provider has noticed."""
    within(5, "nothing to be under way", lambda: in_flight() == 0)
    same("how the provider's request ended", last()["end"], "dropped")


# The requests of the provider, in any dialect.


def parts_asked(entry):
    """The content parts of all messages: (role, part)."""
    body = entry["body"]
    messages = body.get("contents") or body.get("messages") or body.get("input")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for message in messages:
        content = message.get("parts", message.get("content"))
        if isinstance(content, str) or content is None:
            content = [{"type": "text", "text": content or ""}]
        for part in content:
            yield message, part


def results_asked(entry):
    """The tool results that reached the provider, in order."""
    found = []
    for message, part in parts_asked(entry):
        if message.get("role") == "tool":
            found.append(part["text"])
        elif message.get("type", "").endswith("_output"):
            output = message["output"]
            found.append(output if isinstance(output, str) else output[0]["text"])
        elif part.get("type") == "tool_result":
            content = part["content"]
            found.append(content if isinstance(content, str) else content[0]["text"])
        elif "functionResponse" in part:
            found.append(json.dumps(part["functionResponse"]["response"]))
    return found


def images_asked(entry):
    """The images that reached the provider, in base64."""
    found = []
    for _, part in parts_asked(entry):
        if "image_url" in part:
            url = part["image_url"]
            url = url if isinstance(url, str) else url["url"]
            found.append(url.partition("base64,")[2])
        elif part.get("type") == "image":
            found.append(part["source"]["data"])
        elif "inlineData" in part:
            found.append(part["inlineData"]["data"])
    return found


def texts_asked(entry):
    """The texts, turn by turn: (role, text)."""
    turns = []
    for message, part in parts_asked(entry):
        if turns and turns[-1][0] is message:
            turns[-1][1] += part.get("text", "")
        else:
            turns.append([message, part.get("text", "")])
    return [(message.get("role"), text) for message, text in turns]


def signatures_asked(entry):
    """The signatures of thinking that reached the provider."""
    return [
        part.get("signature") or part.get("thoughtSignature")
        for _, part in parts_asked(entry)
        if part.get("signature") or part.get("thoughtSignature")
    ]


def thinks_asked(entry):
    """Whether the request asked for thinking."""
    body = entry["body"]
    config = body.get("generationConfig", {}).get("thinkingConfig")
    return bool(
        body.get("reasoning_effort") or body.get("reasoning") or body.get("thinking") or config
    )


# Embeddings and token counts.

# What each dialect's simulator embeds with.
EMBED = {"openai": "text-embedding-3-small", "gemini": "gemini-embedding-001"}
ONE_DIALECT = "embeddings go to providers of the caller's dialect alone, since nothing in them is translated"


def vector(model, text, dimensions):
    """The simulator's vector of a text, by the rule that its documentation has."""
    numbers = []
    for block in range(-(-dimensions // 8)):
        digest = hashlib.sha256(f"{model}\n{text}\n{block}".encode()).digest()
        words = struct.unpack("<8I", digest)
        numbers += [((word >> 8) - 2**23) / 2**23 for word in words]
    return numbers[:dimensions]


def lines(count):
    """Texts of which no two are the same."""
    return [f"{TEXT} {n * 37 % 4096}" for n in range(count)]


def counted(text):
    """Tokens of a message with this text, by the simulator's rule."""
    return 4 + -(-len(text.encode()) // 4)


# Checks.

_checks = []


def check(feature, name):
    """Registers a function, async or not, as a check of `feature`."""

    def register(function):
        _checks.append((feature, name, function))
        return function

    return register


def none(feature, why):
    """Reports that the SDK has no such feature over this API."""
    _checks.append((feature, why, None))


class Again(Exception):
    """A check holds, but what is checked had to ask more than once."""


def same(what, got, expected):
    if got != expected:
        raise AssertionError(f"{what}: got {got!r}, expected {expected!r}")


def true(what, holds):
    if not holds:
        raise AssertionError(f"not so: {what}")


def raises(kind, function, *args, **kwargs):
    """The error of exactly this class that the call raises."""
    try:
        got = function(*args, **kwargs)
    except Exception as error:
        return exactly(kind, error)
    raise AssertionError(f"nothing was raised, the answer was {got!r}"[:300])


def exactly(kind, error):
    if type(error) is not kind:
        raise AssertionError(
            f"raised {type(error).__module__}.{type(error).__name__} instead of {kind.__name__}: "
            f"{error}"
        ) from error
    return error


def _line(*fields):
    print("\t".join(re.sub(r"\s+", " ", str(field)).strip() for field in fields), flush=True)


def run(version):
    """Runs the checks, in their order, and exits."""
    # The parent process may have ended.
    signal.alarm(120)
    _line("version", version)
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    failed = False
    for feature, name, function in _checks:
        if only not in f"{feature}: {name}":
            continue
        if function is None:
            _line("none", feature, "", name)
            continue
        try:
            if CONTROL:
                _control("PUT", "faults", {})
                _control("PUT", "script", [])
            if inspect.iscoroutinefunction(function):
                asyncio.run(asyncio.wait_for(function(), 20))
            else:
                function()
        except Again as again:
            _line("again", feature, name, again)
        except Exception as error:
            failed = True
            _line("fail", feature, name, f"{type(error).__name__}: {error}"[:1000])
            if only:
                traceback.print_exc()
        else:
            _line("ok", feature, name)
    sys.exit(failed)
