"""OpenAI's Agents SDK, with its models of chat completions and of responses."""

import asyncio
from importlib.metadata import version

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import GATEWAY, KEY, call, same, says, text
from openai.types.shared import Reasoning
from pydantic import BaseModel
from suite import DIALECT, FAST, Adapter, check, suite

# Traces go to the vendor otherwise.
set_tracing_disabled(True)


# paste: openai
from openai import AsyncOpenAI


def model(name, key=KEY):
    client = AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=key)
    return OpenAIChatCompletionsModel(name, openai_client=client)


# end
# paste: responses
from openai import AsyncOpenAI


def responses_model(name, key=KEY):
    client = AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=key)
    return OpenAIResponsesModel(name, openai_client=client)


# end
if DIALECT == "responses":
    model = responses_model


class Person(BaseModel):
    name: str
    age: int


class OpenAiAgents(Adapter):
    version = version("openai-agents")
    shows_thoughts = False

    def __init__(self, key=KEY):
        self.key = key

    def agent(self, name, **more):
        return Agent(name="keeper", model=model(name, self.key or "x"), **more)

    def run(self, agent, prompt):
        return asyncio.run(Runner.run(agent, prompt))

    def chat(self, model, prompt):
        got = self.run(self.agent(model), prompt)
        return got.final_output, got.context_wrapper.usage.output_tokens > 0

    def stream(self, model, prompt):
        async def pieces():
            got = Runner.run_streamed(self.agent(model), prompt)
            return [
                event.data.delta
                async for event in got.stream_events()
                if event.type == "raw_response_event"
                and event.data.type == "response.output_text.delta"
            ]

        return asyncio.run(pieces())

    def tools(self, model, prompt, look_up, stream):
        @function_tool(name_override="look_up")
        def look_up_tool(city: str) -> str:
            """The weather in a city."""
            return look_up(city)

        agent = self.agent(model, tools=[look_up_tool])
        if not stream:
            return self.run(agent, prompt).final_output

        async def streamed():
            got = Runner.run_streamed(agent, prompt)
            async for _ in got.stream_events():
                pass
            return got.final_output

        return asyncio.run(streamed())

    def structured(self, model, prompt):
        return self.run(self.agent(model, output_type=Person), prompt).final_output.model_dump()

    def image(self, model, prompt, base64):
        url = f"data:image/png;base64,{base64}"
        content = [
            {"type": "input_text", "text": prompt},
            {"type": "input_image", "image_url": url, "detail": "auto"},
        ]
        return self.run(self.agent(model), [{"role": "user", "content": content}]).final_output

    def think(self, model, prompt):
        settings = ModelSettings(reasoning=Reasoning(effort="low"))
        return "", self.run(self.agent(model, model_settings=settings), prompt).final_output

    def with_key(self, key):
        return OpenAiAgents(key)

    def status(self, error):
        return error.status_code if isinstance(error, openai.APIStatusError) else None


keeper = OpenAiAgents()


@check("tools", "a handoff to another agent, which answers")
def _():
    says([call("transfer_to_expert", {}, "call_1")], [text("I am the expert.")])
    expert = Agent(name="expert", model=model(FAST), handoff_description="Knows it.")
    got = keeper.run(keeper.agent(FAST, handoffs=[expert]), "Who knows it?")
    same("text", got.final_output, "I am the expert.")
    same("agent", got.last_agent.name, "expert")


suite(keeper)
