"""The `google-genai` SDK for Python against the simulated clouds."""

from google import genai
from google.genai import errors, types
from google.oauth2.credentials import Credentials

from clouds import *

MODEL = "gemini-2.5-flash"
CONFIG = {"thinking_config": {"include_thoughts": True, "thinking_budget": 1000}}


def vertex(token, project=PROJECT):
    return genai.Client(
        vertexai=True, project=project, location=LOCATION, credentials=Credentials(token),
        http_options=types.HttpOptions(base_url=PLATFORMS["vertex", "gemini"], timeout=10_000),
    )


def whole(client):
    answer = client.models.generate_content(model=MODEL, contents=ASK, config=CONFIG)
    thought, text = answer.candidates[0].content.parts
    same("parts", (thought.thought, thought.text, text.text), (True, THOUGHT, TEXT))
    same("finish_reason", answer.candidates[0].finish_reason, types.FinishReason.STOP)
    true(f"usage: {answer.usage_metadata}", answer.usage_metadata.candidates_token_count > 0)


def stream(client):
    chunks = list(
        client.models.generate_content_stream(model=MODEL, contents=ASK, config=CONFIG)
    )
    same("pieces", "".join(chunk.text or "" for chunk in chunks), TEXT)
    same("finish_reason", chunks[-1].candidates[0].finish_reason, types.FinishReason.STOP)
    # A conversation sends back what was answered.
    chat = client.chats.create(model=MODEL)
    same("turns", [chat.send_message(ASK).text for _ in range(2)], [TEXT, TEXT])


def count(client):
    counted = client.models.count_tokens(model=MODEL, contents=ASK)
    true(f"tokens: {counted.total_tokens}", 0 < counted.total_tokens < 100)


client(
    "vertex", vertex, {"Google's credentials": ({"token": TOKEN}, {"token": "no"})},
    errors.ClientError, "401 UNAUTHENTICATED", whole, stream, count,
)

run(genai.__version__)
