"""Code mode: the model writes one program that calls our functions, instead of calling them one by one.

Without arguments a scripted model plays its part; `python 06_code_mode.py MODEL` asks a real one.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from agent_tools.code_mode import Template, Toolset, build_template
from agent_tools.models import Model, get_chat_model
from agent_tools.models.base import CallComplete, TextDelta
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply

Conditions = Literal["sunny", "rain", "cloudy"]


class Weather(TypedDict):
    """The weather now."""

    city: str
    temperature_c: int
    conditions: Conditions
    uv_index: Annotated[int, "0 to 11; 7 and more is high"]


class Day(TypedDict):
    """One day of the forecast."""

    day: str
    high_c: int
    low_c: int
    conditions: Conditions


class AirQuality(TypedDict):
    """The air."""

    aqi: Annotated[int, "0-50 is good, 51-100 moderate, more is unhealthy"]
    category: Literal["good", "moderate", "unhealthy"]


def some_conditions() -> Conditions:
    return random.choice(("sunny", "rain", "cloudy"))


async def get_current_weather(city: str) -> Weather:
    """Tell what it is like outside."""
    await asyncio.sleep(0.05)
    return {
        "city": city,
        "temperature_c": random.randint(18, 31),
        "conditions": some_conditions(),
        "uv_index": random.randint(0, 11),
    }


async def get_forecast(city: str) -> list[Day]:  # noqa: ARG001
    """The next three days."""
    await asyncio.sleep(0.05)
    return [
        {
            "day": day,
            "high_c": random.randint(20, 32),
            "low_c": random.randint(14, 19),
            "conditions": some_conditions(),
        }
        for day in ("Mon", "Tue", "Wed")
    ]


async def get_air_quality(city: str) -> AirQuality:  # noqa: ARG001
    """Tell how clean the air is."""
    await asyncio.sleep(0.05)
    aqi = random.randint(20, 140)
    return {"aqi": aqi, "category": "good" if aqi <= 50 else "moderate" if aqi <= 100 else "unhealthy"}


def get_advisory(kind: Literal["uv", "rain", "air_quality"]) -> str:
    """Advise what to do about it."""
    return {
        "uv": "Use sunscreen at midday.",
        "rain": "Carry an umbrella.",
        "air_quality": "Sensitive groups should stay inside.",
    }[kind]


TOOLS = Toolset([get_current_weather, get_forecast, get_air_quality, get_advisory])

PROMPT = (
    "Write a compact morning weather report for someone leaving for work in Tokyo: the weather now, the forecast, the "
    "air, and advisories only where they are relevant. Plain text, not JSON."
)

SCRIPTED_PROGRAM = """
import asyncio

async def main() -> object:
    now, days, air = await asyncio.gather(
        get_current_weather("Tokyo"), get_forecast("Tokyo"), get_air_quality("Tokyo")
    )
    wanted = []
    if now["uv_index"] >= 7:
        wanted.append(get_advisory("uv"))
    if any(day["conditions"] == "rain" for day in days):
        wanted.append(get_advisory("rain"))
    if air["aqi"] > 100:
        wanted.append(get_advisory("air_quality"))
    lines = [f"Tokyo: {now['temperature_c']}°C and {now['conditions']}."]
    lines += ["Forecast: " + "; ".join(f"{d['day']} {d['conditions']}, {d['high_c']}/{d['low_c']}°" for d in days)]
    lines += [f"Air quality: {air['aqi']} ({air['category']}).", *await asyncio.gather(*wanted)]
    return "\\n".join(lines)
"""


def scripted_model() -> Model:
    def reply(request: dict[str, Any]) -> ScriptedReply:
        last = request["messages"][-1]
        if last["role"] == "tool":
            return ScriptedReply(text=json.loads(last["content"]))
        return ScriptedReply(calls=[ScriptedCall("run_code", {"code": SCRIPTED_PROGRAM})])

    return ScriptedModel(reply)


async def run_code(template: Template, code: str) -> object:
    async with template.create() as sandbox:
        await sandbox.load_script(code)
        return await sandbox.run("main")


async def agent_loop(model: Model, template: Template, prompt: str) -> str:
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    tool = {"name": "run_code", "description": TOOLS.description("main"), "parameters": parameters}
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while True:
        reply = list(model.reply(messages, tools=[tool]))
        calls = [delta for delta in reply if isinstance(delta, CallComplete)]
        if not calls:
            return "".join(delta.text for delta in reply if isinstance(delta, TextDelta))
        asked = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": asked})
        for call in calls:
            result = await run_code(template, json.loads(call.arguments)["code"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


async def main() -> None:
    model = get_chat_model(sys.argv[1]) if len(sys.argv) > 1 else scripted_model()
    template = await build_template("python", hostcalls=TOOLS)
    print(await agent_loop(model, template, PROMPT))


asyncio.run(main())
