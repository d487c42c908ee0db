"""AutoGen: a code executor for `CodeExecutorAgent` and `PythonCodeExecutionTool`, with state, in one sandbox."""

import asyncio
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult

from agent_tools import AsyncSandbox
from agent_tools.integrations.common import text_of


class AgentToolsCodeExecutor(CodeExecutor):
    """Runs blocks of Python and of the shell until one fails. A cancelled block ends, and variables stay."""

    component_config_schema = None  # it has no form as JSON

    def __init__(self, cfg: "dict[str, Any] | None" = None, *, timeout: float = 60) -> None:
        self.sandbox, self.timeout = AsyncSandbox(cfg), timeout

    async def start(self) -> None:
        """Start the sandbox."""
        await self.sandbox.start()

    async def stop(self) -> None:
        """Remove the sandbox."""
        await self.sandbox.close()

    async def restart(self) -> None:
        """Begin with a fresh kernel; files stay."""
        await self.sandbox.restart()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Run blocks one after the other, until one fails."""
        said: list[str] = []
        exit_code = 0
        for block in code_blocks:
            job = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(job)
            exit_code, text = await job
            said.append(text)
            if exit_code:
                break
        return CodeResult(exit_code, "\n".join(filter(None, said)))

    async def _run(self, block: CodeBlock) -> tuple[int, str]:
        if block.language.lower() in ("sh", "bash", "shell"):
            command = await self.sandbox.run_command(block.code, timeout=self.timeout)
            return command.exit_code, "".join(command.texts)
        if block.language.lower() not in ("python", "py", "python3", ""):
            raise ValueError(f"There is no {block.language!r} here: use python or sh.")
        execution = await self.sandbox.run_code(block.code, timeout=self.timeout)
        return 0 if execution.ok else 1, text_of(execution)


async def main() -> None:
    """Let an agent run code."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from autogen_ext.tools.code_execution import PythonCodeExecutionTool

    async with AgentToolsCodeExecutor() as executor:
        tools = [PythonCodeExecutionTool(executor)]
        agent = AssistantAgent("analyst", model_client=OpenAIChatCompletionClient(model="gpt-5-mini"), tools=tools)
        print((await agent.run(task="What is 6 times 7? Run code.")).messages[-1])


if __name__ == "__main__":
    asyncio.run(main())
