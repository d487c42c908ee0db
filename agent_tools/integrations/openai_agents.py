"""OpenAI's Agents SDK: the code interpreter as a function tool, and an executor for its `ShellTool`.

The contracts are those of https://openai.github.io/openai-agents-python/tools/.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from agent_tools import AsyncSandbox
from agent_tools.extras import extra
from agent_tools.integrations.common import CODE, DESCRIPTION, NAME, answer, ending_of, sandbox_of
from agent_tools.results.outputs import Text

with extra("openai-agents"):
    from agents import (
        FunctionTool,
        ShellCallOutcome,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellResult,
        ToolOutputImage,
        ToolOutputText,
        function_tool,
    )
    from pydantic import Field

SHELL_TIMEOUT = 60.0  # seconds of a command, unless the model says otherwise


def code_interpreter_tool(sandbox: AsyncSandbox | dict[str, Any]) -> FunctionTool:
    """Return a tool that runs Python in a sandbox, for models of every provider.

    The model gets text and pictures. A run that is cancelled interrupts the code; variables stay.
    """
    used = sandbox_of(sandbox)

    async def run(code: Annotated[str, Field(description=CODE)]) -> list[ToolOutputText | ToolOutputImage]:
        shown = answer(await used.run_code(code))
        return [
            ToolOutputText(text=each.text) if isinstance(each, Text) else ToolOutputImage(image_url=each.data_url)
            for each in shown
        ]

    return function_tool(run, name_override=NAME, description_override=DESCRIPTION)


def shell_executor(sandbox: AsyncSandbox | dict[str, Any]) -> Callable[[ShellCommandRequest], Awaitable[ShellResult]]:
    """Return an executor that runs the commands of a `ShellTool` in a sandbox, one after the other."""
    used = sandbox_of(sandbox)

    async def execute(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        seconds = action.timeout_ms / 1000 if action.timeout_ms else SHELL_TIMEOUT
        outputs = [await _output(used, command, seconds) for command in action.commands]
        return ShellResult(outputs, max_output_length=action.max_output_length)

    return execute


async def _output(sandbox: AsyncSandbox, command: str, seconds: float) -> ShellCommandOutput:
    done = await sandbox.run_command(command, timeout=seconds)
    outcome = ShellCallOutcome("timeout") if done.timed_out else ShellCallOutcome("exit", done.exit_code)
    stdout, stderr = done.texts
    return ShellCommandOutput(stdout, stderr + ending_of(done), outcome, command)
