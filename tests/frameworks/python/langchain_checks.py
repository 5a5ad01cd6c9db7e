"""LangChain, with the chat model of the vendor whose dialect it is to speak."""

from importlib.metadata import version

from common import GATEWAY, KEY
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from suite import DIALECT, Adapter, suite


# paste: openai
from langchain_openai import ChatOpenAI


def openai(model, **more):
    return ChatOpenAI(model=model, base_url=f"{GATEWAY}/v1", api_key=KEY, **more)


# paste: anthropic
from langchain_anthropic import ChatAnthropic


def anthropic(model, **more):
    return ChatAnthropic(model=model, base_url=GATEWAY, api_key=KEY, **more)


# paste: gemini
from langchain_google_genai import ChatGoogleGenerativeAI


def gemini(model, **more):
    return ChatGoogleGenerativeAI(model=model, base_url=GATEWAY, google_api_key=KEY, **more)


# end


class Person(BaseModel):
    name: str
    age: int


class LangChain(Adapter):
    version = version(f"langchain-{'google-genai' if DIALECT == 'gemini' else DIALECT}")
    shows_thoughts = DIALECT != "openai"

    def __init__(self, key=KEY):
        self.key = key

    def model(self, name, **more):
        names = {"openai": "api_key", "anthropic": "api_key", "gemini": "google_api_key"}
        make = {"openai": openai, "anthropic": anthropic, "gemini": gemini}[DIALECT]
        made = make(name, **more)
        if self.key == KEY:
            return made
        cls = type(made)
        base = f"{GATEWAY}/v1" if DIALECT == "openai" else GATEWAY
        return cls(model=name, base_url=base, **{names[DIALECT]: self.key or "x"}, **more)

    def chat(self, model, prompt):
        got = self.model(model).invoke(prompt)
        return got.text, got.usage_metadata["output_tokens"] > 0

    def stream(self, model, prompt):
        return [chunk.text for chunk in self.model(model).stream(prompt) if chunk.text]

    def tools(self, model, prompt, look_up, stream):
        @tool
        def look_up_tool(city: str) -> str:
            """The weather in a city."""
            return look_up(city)

        look_up_tool.name = "look_up"
        bound = self.model(model).bind_tools([look_up_tool])
        messages = [HumanMessage(prompt)]

        def ask():
            if not stream:
                return bound.invoke(messages)
            whole = None
            for chunk in bound.stream(messages):
                whole = chunk if whole is None else whole + chunk
            return whole

        got = ask()
        messages.append(AIMessage(content=got.content, tool_calls=got.tool_calls))
        for made in got.tool_calls:
            messages.append(ToolMessage(look_up_tool.invoke(made["args"]), tool_call_id=made["id"]))
        return ask().text

    def structured(self, model, prompt):
        bound = self.model(model).with_structured_output(Person, method="json_schema")
        return bound.invoke(prompt).model_dump()

    def image(self, model, prompt, base64):
        image = {"type": "image", "base64": base64, "mime_type": "image/png"}
        content = [{"type": "text", "text": prompt}, image]
        return self.model(model).invoke([HumanMessage(content=content)]).text

    def think(self, model, prompt):
        more = {
            "openai": {"reasoning_effort": "low"},
            "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 8000},
            "gemini": {"thinking_budget": 2000, "include_thoughts": True},
        }
        got = self.model(model, **more[DIALECT]).invoke(prompt)
        blocks = got.content_blocks
        thoughts = [block["reasoning"] for block in blocks if block["type"] == "reasoning"]
        return "".join(thoughts), got.text

    def with_key(self, key):
        return LangChain(key)

    def status(self, error):
        return getattr(error, "status_code", None) or getattr(error, "code", None) or status_in(error)


def status_in(error):
    cause = error.__cause__ or error.__context__
    return getattr(cause, "status_code", None) or getattr(cause, "code", None)


suite(LangChain())
