"""AutoGen's `OpenAIAgent` with its code interpreter; it names the response before by itself."""

import asyncio

import openai
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_ext.agents.openai import OpenAIAgent
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report


async def main() -> None:
    client = openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    agent = OpenAIAgent("analyst", "Works it out.", client, MODEL, "Work it out.", tools=[TOOL])
    answers = []
    for text in (FIRST, AGAIN):
        answer = await agent.on_messages([TextMessage(content=text, source="user")], CancellationToken())
        answers.append(answer.chat_message.content)
    report(*answers)


asyncio.run(main())
