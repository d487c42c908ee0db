"""verifiers: a runtime whose programs run in a sandbox. What bootstraps `uv` needs an egress allowlist."""

from types import SimpleNamespace
from typing import Any

from verifiers.v1.runtimes.base import ProgramResult, Runtime

from agent_tools import AsyncSandbox
from agent_tools.sandbox.options import Config

PROGRAM_SECONDS = 3600.0


class AgentToolsRuntime(Runtime):
    """A runtime of verifiers' on one of our sandboxes."""

    config: Any = SimpleNamespace(type="agent-tools", workdir=AsyncSandbox.root)
    network_restricted = True

    def __init__(self, cfg: Config | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.sandbox = AsyncSandbox(cfg)

    async def start(self) -> None:
        await self.sandbox.start()

    def cleanup(self) -> None:
        self.sandbox.sync.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        done = await self.sandbox.run_command(argv, env=self.process_env(env), timeout=PROGRAM_SECONDS)
        return ProgramResult(done.exit_code, *done.texts)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        return await self.sandbox.read_file(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        await self.sandbox.write_file(path, data)
