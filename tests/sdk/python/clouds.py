"""What the scripts of the clouds share: the simulated platforms, and the checks of a client.

Such a script is started with
    SDK_CLOUDS    a line for each platform: its name, its dialect and where it is, as
                  `crates/sim/examples/clouds.rs` prints them, which also has the credentials
"""

import os
import re
from functools import cache, partial

from common import check, none, raises, run, same, true

PLATFORMS = {
    (name, dialect): url
    for name, dialect, url in (line.split() for line in os.environ["SDK_CLOUDS"].splitlines())
}

TOKEN = "token-example"
API_KEY = "bedrock-api-key-example"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "us-east-1"
PROJECT, LOCATION = "my-project", "us-east5"
RESOURCE = f"projects/{PROJECT}/locations/{LOCATION}"
VERSION = "2024-10-21"

# What is asked, and what each platform answers.
ASK = "What is it?"
TEXT = "It is na\u00efve, \u65e5\u672c."
THOUGHT = "Hm."


def client(id, make, credentials, error, says, whole, stream, count):
    """The checks of a client.

    `credentials` has for each kind the arguments of `make` that are right, and those that are wrong;
    with the latter every call raises `error`, in whose text is `says`. `count` is a call, or why there
    is none.
    """
    calls = {"whole": whole, "stream": stream}
    if isinstance(count, str):
        none(f"{id}: token counting", count)
    else:
        calls["token counting"] = count

    def asks(call, right):
        call(right())

    def refuses(wrong):
        for call in calls.values():
            raised = str(raises(error, call, wrong()))
            true(f"it says {says}: {raised}", re.search(says, raised))

    for kind, given in credentials.items():
        # Each client is made once, by the check that needs it first.
        right, wrong = (cache(partial(make, **arguments)) for arguments in given)
        for feature, call in calls.items():
            check(f"{id}: {feature}", kind)(partial(asks, call, right))
        check(f"{id}: wrong credential", kind)(partial(refuses, wrong))


def aws(access_key, secret_key, session_token):
    """Keys of AWS, as the arguments of these names."""

    def keys(id, secret, token=None):
        named = {access_key: id, secret_key: secret}
        return named if token is None else {**named, session_token: token}

    return {
        "access key": (keys("AKIDEXAMPLE", SECRET), keys("AKIDEXAMPLE", "no")),
        "session token": (
            keys("ASIATEMPORARY", SECRET, "session-token"), keys("ASIATEMPORARY", SECRET, "no")
        ),
    }
