"""Agno: an agent whose tool runs code in a sandbox, instead of PythonTools, which runs it in your process."""

from typing import Any

from agno.agent import Agent

from agent_tools import AsyncSandbox
from agent_tools.integrations.common import text_of


async def answer(model: Any, question: str, sandbox: AsyncSandbox) -> Any:
    """Let an agent answer, with code; return its run."""

    async def code_interpreter(code: str) -> str:
        """Runs Python in a sandbox. Variables and files stay from call to call; the last expression's value is shown.

        Args:
            code: The Python code.
        """
        return text_of(await sandbox.run_code(code))

    return await Agent(model=model, tools=[code_interpreter]).arun(question)


if __name__ == "__main__":
    import asyncio

    from agno.models.openai import OpenAIChat

    print(asyncio.run(answer(OpenAIChat(id="gpt-5-mini"), "What is 6 times 7?", AsyncSandbox())).content)
