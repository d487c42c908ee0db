"""AG2: its code tool on a sandbox, where variables stay from call to call."""

from typing import Any

from ag2 import Agent
from ag2.tools.code import CodeLanguage, CodeRunResult, SandboxCodeTool

from agent_tools import AsyncSandbox
from agent_tools.integrations.common import text_of


class AgentToolsCode:
    """A `CodeEnvironment` of AG2's."""

    supported_languages: tuple[CodeLanguage, ...] = ("python", "bash")

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox

    async def run(self, code: str, language: CodeLanguage, *, context: Any = None) -> CodeRunResult:
        if language == "bash":
            done = await self.sandbox.run_command(code)
            return CodeRunResult("".join(done.texts), done.exit_code)
        execution = await self.sandbox.run_code(code)
        return CodeRunResult(text_of(execution), 0 if execution.ok else 1)


async def answer(config: Any, question: str, sandbox: AsyncSandbox) -> Any:
    """Let an agent answer, with code; return its reply."""
    agent = Agent("analyst", config=config, tools=[SandboxCodeTool(AgentToolsCode(sandbox))])
    return await agent.ask(question)


if __name__ == "__main__":
    import asyncio

    from ag2.config import OpenAIConfig

    print(asyncio.run(answer(OpenAIConfig("gpt-5-mini"), "What is 6 times 7?", AsyncSandbox())))
