"""The `anthropic` SDK for Python against the simulated clouds."""

import warnings

import anthropic
from google.oauth2.credentials import Credentials

from clouds import *

# The names of the models are those of the simulators, some of them old.
warnings.filterwarnings("ignore", category=DeprecationWarning)

OPTIONS = {"max_retries": 0, "timeout": 10}
ASKED = {"max_tokens": 2000, "messages": [{"role": "user", "content": ASK}]}
UNKNOWN = (anthropic.AuthenticationError, "401")
THINK = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def answered(message):
    thinking, text = message.content
    same("content", (thinking.thinking, text.text), (THOUGHT, TEXT))
    true("a signature", thinking.signature)
    same("stop_reason", message.stop_reason, "end_turn")
    true(f"usage: {message.usage}", message.usage.output_tokens > 0)


def whole(model, client):
    answered(client.messages.create(model=model, **ASKED, **THINK))
    # A beta is a header, or on Bedrock a field; the address of these calls has a query.
    betas = ["interleaved-thinking-2025-05-14"]
    answered(client.beta.messages.create(model=model, betas=betas, **ASKED, **THINK))


def stream(model, client):
    events = list(client.messages.create(model=model, stream=True, **ASKED, **THINK))
    same("events", (events[0].type, events[-1].type), ("message_start", "message_stop"))
    with client.messages.stream(model=model, **ASKED, **THINK) as stream:
        same("pieces", "".join(stream.text_stream), TEXT)
        answered(stream.get_final_message())


def count(model, client):
    counted = client.messages.count_tokens(model=model, messages=ASKED["messages"])
    true(f"tokens: {counted}", 0 < counted.input_tokens < 100)


def on(id, make, model, credentials, error, count=count):
    calls = partial(whole, model), partial(stream, model)
    count = count if isinstance(count, str) else partial(count, model)
    client(id, make, credentials, *error, *calls, count)


def foundry(**credential):
    return anthropic.AnthropicFoundry(
        base_url=f"{PLATFORMS['azure', 'anthropic']}/anthropic", **credential, **OPTIONS
    )


def vertex(**credential):
    return anthropic.AnthropicVertex(
        base_url=f"{PLATFORMS['vertex', 'anthropic']}/v1",
        project_id=PROJECT, region=LOCATION, **credential, **OPTIONS,
    )


def bedrock(**credential):
    return anthropic.AnthropicBedrock(
        base_url=PLATFORMS["bedrock", "anthropic"], aws_region=REGION, **credential, **OPTIONS
    )


on(
    "azure", foundry, "claude-sonnet-4-5",
    {
        "key": ({"api_key": TOKEN}, {"api_key": "no"}),
        "token provider": (
            {"azure_ad_token_provider": lambda: TOKEN}, {"azure_ad_token_provider": lambda: "no"}
        ),
    },
    UNKNOWN,
)
on(
    "vertex", vertex, "claude-sonnet-4-5@20250929",
    {
        "token": ({"access_token": TOKEN}, {"access_token": "no"}),
        "Google's credentials": (
            {"credentials": Credentials(TOKEN)}, {"credentials": Credentials("no")}
        ),
    },
    UNKNOWN,
)
on(
    "bedrock", bedrock, "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    {
        **aws("aws_access_key", "aws_secret_key", "aws_session_token"),
        "API key": ({"api_key": API_KEY}, {"api_key": "no"}),
    },
    (anthropic.PermissionDeniedError, "403"),
    "it has none for Bedrock",
)

run(anthropic.__version__)
