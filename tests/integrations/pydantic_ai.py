"""Pydantic AI's `WorkspaceBackendSuite`, with files by the shell as it derives them, and with files of our own."""

from __future__ import annotations

import contextlib
import math
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from agent_tools import AsyncSandbox
from agent_tools.errors import SandboxGone
from agent_tools.file_info import FileInfo

TIMEOUT = 86_000.0  # seconds of a command, unless it says otherwise
EXPECTED: dict[str, str] = {}


class Commands(WorkspaceBackend, SupportsCommands):
    """A workspace of Pydantic AI's on a sandbox of ours: commands only."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self._ref: WorkspaceRef | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        if self._ref is None:
            await self.sandbox.start()
            self._ref = WorkspaceRef(provider="agent-tools", id=self.sandbox.id)
        return self.sandbox.root

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if shell != isinstance(command, str):
            raise TypeError("a text wants shell=True, a sequence shell=False")
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError("timeout must be a positive finite number or None")
        await self.working_dir()
        try:
            done = await self.sandbox.run_command(command, env=env, timeout=timeout or TIMEOUT)
        except SandboxGone as exc:
            raise WorkspaceUnavailableError(str(exc)) from exc
        out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        if done.timed_out:
            raise WorkspaceTimeoutError(f"it ran over {timeout} s", stdout=out, stderr=err)
        if done.truncated:
            raise WorkspaceOutputLimitError("too much output", limit=len(done.stdout), stdout=out, stderr=err)
        return CommandResult(exit_code=done.exit_code, stdout=out, stderr=err)


class Files(Commands, SupportsFilesystem):
    """The same with files."""

    async def read_bytes(self, path: str) -> bytes:
        await self.working_dir()
        return await self.sandbox.read_file(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self.working_dir()
        await self.sandbox.write_file(path, data)

    async def stat(self, path: str) -> FileEntry:
        await self.working_dir()
        return _entry(await self.sandbox.stat(path), path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        await self.working_dir()
        return [await self._followed(info) for info in await self.sandbox.list_files(path)]

    async def make_dir(self, path: str) -> None:
        await self.working_dir()
        await self.sandbox.make_dir(path)

    async def remove(self, path: str) -> None:
        root = await self.working_dir()
        if posixpath.commonpath([root, posixpath.normpath(path)]) == posixpath.normpath(path):
            raise ValueError("the working directory and those above it stay")
        await self.sandbox.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        await self.working_dir()
        return await self.sandbox.exists(path)

    async def _followed(self, info: FileInfo) -> FileEntry:
        """An entry, of a link what it leads to."""
        if info.kind == "link":
            with contextlib.suppress(OSError):  # it leads nowhere
                info = await self.sandbox.stat(info.path)
        return _entry(info, info.path)


def _entry(info: FileInfo, path: str) -> FileEntry:
    size = info.size if info.kind == "file" else None
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=info.is_dir, size=size)


class _Suite(WorkspaceBackendSuite):
    of: type[Commands]

    @pytest.fixture(scope="class")
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(scope="class")
    def backend(self, new_async_sandbox: Callable[[], AsyncSandbox]) -> Commands:
        return self.of(new_async_sandbox())

    @pytest.fixture
    def fresh_backend(self, new_async_sandbox: Callable[[], AsyncSandbox]) -> Callable[[], Commands]:
        return lambda: self.of(new_async_sandbox())

    @pytest.fixture
    def destroy_environment(self) -> Callable[[Commands], Awaitable[None]]:
        async def destroy(backend: Commands) -> None:
            await backend.sandbox.close()

        return destroy


class TestCommands(_Suite):
    of = Commands


class TestFiles(_Suite):
    of = Files
