"""AutoGen: a code executor for `CodeExecutorAgent` and `PythonCodeExecutionTool`, as a component with a configuration.

`CodeExecutor` is theirs, of autogen-core (https://microsoft.github.io/autogen/stable/).
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_tools import AsyncSandbox, Execution
from agent_tools.extras import extra
from agent_tools.integrations.common import text_of

with extra("autogen"):
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
    from pydantic import BaseModel, Field
    from typing_extensions import Self

PYTHON = ("python", "py", "python3", "")
SHELL = ("sh", "bash", "shell")


class AgentToolsExecutorConfig(BaseModel):
    """An executor as JSON."""

    cfg: dict[str, Any] = Field(default_factory=dict)
    timeout: float = 60
    output_dir: str | None = None


@dataclass
class AgentToolsCodeResult(CodeResult):
    """The outcome of blocks of code; `output_files` are the figures, where there is a folder for them."""

    output_files: list[Path] = field(default_factory=list)


class AgentToolsCodeExecutor(CodeExecutor, Component[AgentToolsExecutorConfig]):
    """Runs blocks of Python, with state, and of the shell, in one sandbox.

    Args:
        cfg: the options of `agent_tools.CodeInterpreter`.
        timeout: seconds of a block, at least 1.
        output_dir: a folder of the host for figures; without it, figures are only mentioned.
    """

    component_config_schema = AgentToolsExecutorConfig
    component_provider_override = "agent_tools.integrations.autogen.AgentToolsCodeExecutor"

    def __init__(
        self, cfg: dict[str, Any] | None = None, *, timeout: float = 60, output_dir: Path | str | None = None
    ) -> None:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        folder = str(output_dir) if output_dir else None
        self._config = AgentToolsExecutorConfig(cfg=cfg or {}, timeout=timeout, output_dir=folder)
        self.sandbox = AsyncSandbox(cfg)

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
    ) -> AgentToolsCodeResult:
        """Run blocks until one fails; cancelling the token ends the one that runs, and variables stay."""
        done = AgentToolsCodeResult(0, "")
        for block in code_blocks:
            job = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(job)
            one = await job
            done.exit_code, done.output = one.exit_code, "\n".join(filter(None, (done.output, one.output)))
            done.output_files += one.output_files
            if one.exit_code:
                break
        return done

    async def _run(self, block: CodeBlock) -> AgentToolsCodeResult:
        language = block.language.lower()
        if language in SHELL:
            command = await self.sandbox.run_command(block.code, timeout=self._config.timeout)
            return AgentToolsCodeResult(command.exit_code, "".join(command.texts))
        if language not in PYTHON:
            raise ValueError(f"There is no {block.language!r} here: use python or sh.")
        execution = await self.sandbox.run_code(block.code, timeout=self._config.timeout)
        return AgentToolsCodeResult(0 if execution.ok else 1, text_of(execution), self._saved(execution))

    def _saved(self, execution: Execution) -> list[Path]:
        if self._config.output_dir is None:
            return []
        folder = Path(self._config.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{uuid.uuid4().hex}{each.suffix}" for each in execution.pictures]
        for path, picture in zip(paths, execution.pictures):
            path.write_bytes(picture.data)
        return paths

    def _to_config(self) -> AgentToolsExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: AgentToolsExecutorConfig) -> Self:
        return cls(config.cfg, timeout=config.timeout, output_dir=config.output_dir)
