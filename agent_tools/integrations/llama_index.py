"""LlamaIndex: tools for `FunctionAgent`, and a function that runs the code of `CodeActAgent`.

`BaseToolSpec` and its content blocks are theirs, of llama-index-core (https://developers.llamaindex.ai/).
"""

from __future__ import annotations

from typing import Any

from agent_tools import AsyncSandbox, Execution
from agent_tools.extras import extra
from agent_tools.integrations.common import answer, ending_of, sandbox_of, text_of
from agent_tools.results.commands import CommandResult
from agent_tools.results.outputs import Text

with extra("llama-index"):
    from llama_index.core.base.llms.types import ImageBlock, TextBlock
    from llama_index.core.tools.tool_spec.base import BaseToolSpec


class AgentToolsToolSpec(BaseToolSpec):
    """The tools `code_interpreter` and `run_command` on one sandbox; `to_tool_list()` gives them.

    Args:
        sandbox: the sandbox to use; one with default options otherwise. It starts with its first use.
    """

    spec_functions = [("code_interpreter", "acode_interpreter"), ("run_command", "arun_command")]  # noqa: RUF012 - theirs

    def __init__(self, sandbox: AsyncSandbox | dict[str, Any] | None = None) -> None:
        self.sandbox = sandbox_of(sandbox)

    def code_interpreter(self, code: str) -> list[TextBlock | ImageBlock]:
        """Runs Python in a sandbox with numpy, pandas, scipy, scikit-learn and matplotlib. Variables and files stay
        from call to call. The answer has what the code printed, the value of its last expression, and its figures.
        """
        return _blocks(self.sandbox.sync.run_code(code))

    async def acode_interpreter(self, code: str) -> list[TextBlock | ImageBlock]:
        """Do the same; being cancelled interrupts the code, and variables stay."""
        return _blocks(await self.sandbox.run_code(code))

    def run_command(self, command: str) -> str:
        """Runs a shell command in the sandbox of the code and its files. The answer is its output."""
        return _told(self.sandbox.sync.run_command(command))

    async def arun_command(self, command: str) -> str:
        """Do the same; being cancelled ends the command."""
        return _told(await self.sandbox.run_command(command))

    async def code_execute_fn(self, code: str) -> dict[str, Any]:
        """Run code for `CodeActAgent(code_execute_fn=...)`."""
        execution = await self.sandbox.run_code(code)
        return {"output": text_of(execution), "ok": execution.ok}


def _told(done: CommandResult) -> str:
    """Return what a command printed, and how it failed."""
    if done.timed_out:
        note = f"\n[ended after {done.duration:.0f} s, its time limit]"
    else:
        note = ending_of(done) + ("" if done.ok else f"\n[exit code {done.exit_code}]")
    return "".join((*done.texts, note))


def _blocks(execution: Execution) -> list[TextBlock | ImageBlock]:
    return [
        TextBlock(text=each.text) if isinstance(each, Text) else ImageBlock(image=each.data, image_mimetype=each.mime)
        for each in answer(execution)
    ]
