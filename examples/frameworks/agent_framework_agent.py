"""Microsoft Agent Framework: an agent whose tool runs code in a sandbox."""

from typing import Annotated, Any

from agent_framework import Agent

from agent_tools import AsyncSandbox
from agent_tools.integrations.common import text_of


async def answer(client: Any, question: str, sandbox: AsyncSandbox) -> Any:
    """Let an agent answer, with code; return its response."""

    async def code_interpreter(code: Annotated[str, "The Python code."]) -> str:
        """Runs Python in a sandbox. Variables and files stay from call to call; the last value is shown."""
        return text_of(await sandbox.run_code(code))

    return await Agent(client, tools=[code_interpreter]).run(question)


if __name__ == "__main__":
    import asyncio

    from agent_framework.openai import OpenAIChatClient

    print(asyncio.run(answer(OpenAIChatClient(), "What is 6 times 7?", AsyncSandbox())).text)
