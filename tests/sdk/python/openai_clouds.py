"""The `openai` SDK for Python against the simulated clouds."""

import openai
from google.oauth2.credentials import Credentials
from openai.providers import bedrock, vertex

from clouds import *

MODEL = "gpt-4o"
MESSAGES = [{"role": "user", "content": ASK}]
OPTIONS = {"max_retries": 0, "timeout": 10}
NO_COUNT = "the clouds count for models of Anthropic and Google alone"
UNKNOWN = (openai.AuthenticationError, "401")


def completed(completion):
    (choice,) = completion.choices
    same("text", choice.message.content, TEXT)
    same("finish_reason", choice.finish_reason, "stop")
    true(f"usage: {completion.usage}", completion.usage.completion_tokens > 0)


def chat(client):
    completed(client.chat.completions.create(model=MODEL, messages=MESSAGES))


def chat_stream(client):
    asked = {"model": MODEL, "messages": MESSAGES, "stream_options": {"include_usage": True}}
    chunks = client.chat.completions.create(stream=True, **asked)
    same("pieces", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), TEXT)
    with client.chat.completions.stream(**asked) as stream:
        completed(stream.get_final_completion())


def answered(response):
    same("text", response.output_text, TEXT)
    same("status", response.status, "completed")
    true(f"usage: {response.usage}", response.usage.output_tokens > 0)


def responses(client):
    answered(client.responses.create(model=MODEL, input=ASK))


def responses_stream(client):
    events = client.responses.create(model=MODEL, input=ASK, stream=True)
    deltas = (e.delta for e in events if e.type == "response.output_text.delta")
    same("pieces", "".join(deltas), TEXT)
    with client.responses.stream(model=MODEL, input=ASK) as stream:
        answered(stream.get_final_response())


APIS = {
    "chat": ("openai", chat, chat_stream),
    "responses": ("responses", responses, responses_stream),
}


def both(name, make, credentials, error, apis=APIS):
    """The checks of a client by each of its APIs; `make` is given the dialect."""
    for api in apis:
        dialect, whole, stream = APIS[api]
        client(
            f"{name} {api}", partial(make, dialect), credentials, *error, whole, stream, NO_COUNT
        )


def azure(dialect, api_key):
    return openai.OpenAI(
        base_url=f"{PLATFORMS['azure', dialect]}/openai/v1", api_key=api_key, **OPTIONS
    )


def azure_version(dialect, **credential):
    endpoint = PLATFORMS[f"azure-{VERSION}", dialect]
    return openai.AzureOpenAI(
        azure_endpoint=endpoint, api_version=VERSION, **credential, **OPTIONS
    )


def vertex_chat(dialect, api_key):
    url = f"{PLATFORMS['vertex', dialect]}/v1/{RESOURCE}/endpoints/openapi"
    return openai.OpenAI(base_url=url, api_key=api_key, **OPTIONS)


def vertex_responses(dialect, **credential):
    url = f"{PLATFORMS['vertex', dialect]}/v1/{RESOURCE}/publishers/openai/v1"
    return openai.OpenAI(provider=vertex(base_url=url, **credential), **OPTIONS)


def on_bedrock(dialect, **credential):
    provider = bedrock(
        endpoint="runtime" if dialect == "openai" else "mantle",
        region=REGION,
        base_url=f"{PLATFORMS['bedrock', dialect]}/openai/v1",
        **credential,
    )
    return openai.OpenAI(provider=provider, **OPTIONS)


def tokens(name):
    return {name: TOKEN}, {name: "no"}


def providers(name):
    return {name: lambda: TOKEN}, {name: lambda: "no"}


both(
    "azure", azure, {"key": tokens("api_key"), "token provider": providers("api_key")},
    UNKNOWN,
)
both(
    "azure by version", azure_version,
    {"key": tokens("api_key"), "token provider": providers("azure_ad_token_provider")},
    UNKNOWN,
)
both("vertex", vertex_chat, {"token": tokens("api_key")}, UNKNOWN, ["chat"])
both(
    "vertex", vertex_responses,
    {
        "token provider": providers("token_provider"),
        "Google's credentials": (
            {"credentials": Credentials(TOKEN)}, {"credentials": Credentials("no")}
        ),
    },
    UNKNOWN, ["responses"],
)
both(
    "bedrock", on_bedrock,
    {
        **aws("access_key_id", "secret_access_key", "session_token"),
        "API key": ({"api_key": API_KEY}, {"api_key": "no"}),
    },
    (openai.PermissionDeniedError, "403"),
)

run(openai.__version__)
