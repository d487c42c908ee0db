"""Semantic Kernel: OpenAIResponsesAgent, with its thread."""

import asyncio

from openai import AsyncOpenAI
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report
from semantic_kernel.agents import OpenAIResponsesAgent


async def main() -> None:
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    agent = OpenAIResponsesAgent(ai_model_id=MODEL, client=client, name="Analyst", tools=[TOOL])
    first = await agent.get_response(FIRST)
    second = await agent.get_response(AGAIN, thread=first.thread)
    report(first.message.content, second.message.content)


asyncio.run(main())
