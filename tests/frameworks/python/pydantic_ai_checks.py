"""pydantic-ai, with the model and the provider of the vendor whose dialect it is to speak."""

import base64 as b64
from importlib.metadata import version

from common import GATEWAY, KEY, call
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelHTTPError, ThinkingPart
from suite import DIALECT, PERSON, Adapter, suite


# paste: openai
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def openai(model, key=KEY):
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{GATEWAY}/v1", api_key=key))


# paste: anthropic
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider


def anthropic(model, key=KEY):
    return AnthropicModel(model, provider=AnthropicProvider(base_url=GATEWAY, api_key=key))


# paste: gemini
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider


def gemini(model, key=KEY):
    return GoogleModel(model, provider=GoogleProvider(base_url=GATEWAY, api_key=key))


# end


class Person(BaseModel):
    name: str
    age: int


class PydanticAi(Adapter):
    version = version("pydantic-ai-slim")
    structured_blocks = [call("final_result", PERSON, "call_1")]
    shows_thoughts = DIALECT != "openai"

    def __init__(self, key=KEY):
        self.key = key

    def agent(self, model, **more):
        make = {"openai": openai, "anthropic": anthropic, "gemini": gemini}[DIALECT]
        return Agent(make(model, self.key or "x"), **more)

    def chat(self, model, prompt):
        got = self.agent(model).run_sync(prompt)
        usage = got.usage() if callable(got.usage) else got.usage
        return got.output, usage.output_tokens > 0

    def stream(self, model, prompt):
        with self.agent(model).run_stream_sync(prompt) as got:
            return list(got.stream_text(delta=True, debounce_by=None))

    def tools(self, model, prompt, look_up, stream):
        agent = self.agent(model)

        @agent.tool_plain(name="look_up")
        def look_up_tool(city: str) -> str:
            """The weather in a city."""
            return look_up(city)

        if not stream:
            return agent.run_sync(prompt).output
        with agent.run_stream_sync(prompt) as got:
            return got.get_output()

    def structured(self, model, prompt):
        return self.agent(model, output_type=Person).run_sync(prompt).output.model_dump()

    def image(self, model, prompt, base64):
        image = BinaryContent(b64.b64decode(base64), media_type="image/png")
        return self.agent(model).run_sync([prompt, image]).output

    def think(self, model, prompt):
        settings = {
            "openai": {"openai_reasoning_effort": "low"},
            "anthropic": {"anthropic_thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 8000},
            "gemini": {"google_thinking_config": {"thinking_budget": 2000, "include_thoughts": True}},
        }
        got = self.agent(model, model_settings=settings[DIALECT]).run_sync(prompt)
        parts = [part for message in got.all_messages() for part in message.parts]
        return "".join(part.content for part in parts if isinstance(part, ThinkingPart)), got.output

    def with_key(self, key):
        return PydanticAi(key)

    def status(self, error):
        return error.status_code if isinstance(error, ModelHTTPError) else None


suite(PydanticAi())
