"""Pydantic AI: a workspace of commands and files, and a capability with the code interpreter beside it.

`WorkspaceBackend`, `SupportsCommands`, `SupportsFilesystem` and `AbstractCapability` are theirs (https://ai.pydantic.dev/).
"""

from __future__ import annotations

import errno
import math
import posixpath
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_tools import AsyncSandbox, Execution
from agent_tools.errors import SandboxGone
from agent_tools.extras import extra
from agent_tools.integrations.common import DESCRIPTION, answer, ending_of, sandbox_of
from agent_tools.results.files import FileInfo
from agent_tools.results.outputs import Picture, Text

with extra("pydantic-ai"):
    from pydantic_ai import BinaryContent, RunContext, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        SupportsCommands,
        SupportsFilesystem,
        SupportsRealpath,
        WorkspaceBackend,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )

PROVIDER = "agent-tools"
TIMEOUT = 86_000.0  # seconds of a command, unless it says otherwise


_BY_ID: weakref.WeakValueDictionary[str, AsyncSandbox] = weakref.WeakValueDictionary()


class AgentToolsWorkspace(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """The commands and files of a sandbox, which starts with the first of them and ends with `sandbox.close()`.

    A sandbox is found again by its ref in the process that started it: it ends with that.
    """

    def __init__(self, sandbox: AsyncSandbox | dict[str, Any] | None = None) -> None:
        self.sandbox = sandbox_of(sandbox)
        self._ref: WorkspaceRef | None = None

    @classmethod
    def attach(cls, ref: WorkspaceRef) -> AgentToolsWorkspace:
        """Return the workspace of a ref; if its sandbox has ended, using it raises an error."""
        attached = cls(_BY_ID.get(ref.id))
        attached._ref = ref
        return attached

    @property
    def ref(self) -> WorkspaceRef | None:
        """The sandbox's name, once it has started."""
        return self._ref

    async def working_dir(self) -> str:
        """Return the folder that relative paths count from.

        Raises:
            WorkspaceUnavailableError: the sandbox has ended.
        """
        if self._ref is None:
            await self.sandbox.start()
            self._ref = WorkspaceRef(provider=PROVIDER, id=self.sandbox.id)
            _BY_ID[self.sandbox.id] = self.sandbox
        elif self.sandbox.id != self._ref.id or not (self.sandbox.is_alive or self.sandbox.sync.options.idle_stop):
            raise WorkspaceUnavailableError(f"The sandbox {self._ref.id} has ended.")
        return self.sandbox.root

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command; being cancelled ends it."""
        if shell != isinstance(command, str):
            raise TypeError("A text wants shell=True, a sequence shell=False.")
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError("timeout must be a positive finite number or None.")
        await self.working_dir()
        timeout = timeout or TIMEOUT
        try:
            done = await self.sandbox.run_command(command, env=env, timeout=timeout)
        except SandboxGone as exc:
            raise WorkspaceUnavailableError(str(exc)) from exc
        stdout, stderr = done.texts
        if done.timed_out:
            raise WorkspaceTimeoutError(f"The command ran longer than {timeout:g} s.", stdout=stdout, stderr=stderr)
        if done.truncated:
            raise WorkspaceOutputLimitError("Too much output.", limit=len(done.stdout), stdout=stdout, stderr=stderr)
        return CommandResult(exit_code=done.exit_code, stdout=stdout, stderr=stderr + ending_of(done))

    async def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file."""
        await self.working_dir()
        return await self.sandbox.read_file(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file; folders above it are made."""
        await self.working_dir()
        await self.sandbox.write_file(path, data)

    async def stat(self, path: str) -> FileEntry:
        """Return one file or folder."""
        await self.working_dir()
        return _entry(await self.sandbox.stat(path), path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """Return the entries of a folder."""
        await self.working_dir()
        return [_entry(info, info.path) for info in await self.sandbox.list_files(path, follow=True)]

    async def make_dir(self, path: str) -> None:
        """Make a folder and those above it."""
        await self.working_dir()
        await self.sandbox.make_dir(path)

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all in it."""
        root = await self.working_dir()
        if posixpath.commonpath([root, posixpath.normpath(path)]) == posixpath.normpath(path):
            raise ValueError("The working directory and the folders above it cannot be removed.")
        await self.sandbox.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this path."""
        await self.working_dir()
        return await self.sandbox.exists(path)

    async def realpath(self, path: str) -> str:
        """Return where a path leads to; parts that are not there are kept."""
        await self.working_dir()
        done = await self.sandbox.run_command(["realpath", "--canonicalize-missing", "--zero", "--", path])
        if not done.ok:
            raise OSError(errno.ELOOP, done.output.strip(), path)
        return done.stdout.rstrip(b"\0").decode("utf-8", "surrogateescape")


@dataclass(kw_only=True)
class AgentToolsSandbox(AbstractCapability[Any]):
    """`Agent(model, capabilities=[AgentToolsSandbox()])`: the tool `run_code`, and the run's workspace.

    Both are of one sandbox, which lives on from run to run: close it with `sandbox.close()`.
    """

    cfg: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workspace = AgentToolsWorkspace(AsyncSandbox(self.cfg))

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox, for files and commands beside the code."""
        return self.workspace.sandbox

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """Return this workspace for a run that wants a fresh one, and another of ours by its ref."""
        if ref is None:
            return self.workspace
        return AgentToolsWorkspace.attach(ref) if ref.provider == PROVIDER else None

    def get_toolset(self) -> FunctionToolset[Any]:
        """Return the tool."""
        toolset = FunctionToolset[Any]()
        toolset.add_function(self._run_code, name="run_code", description=DESCRIPTION)
        return toolset

    async def _run_code(self, code: str) -> ToolReturn:
        return tool_return(await self.sandbox.run_code(code))


def tool_return(execution: Execution) -> ToolReturn:
    """Return an answer in Pydantic AI's form: text, pictures as content beside it, the `Execution` as metadata."""
    shown = answer(execution)
    pictures = [BinaryContent(each.data, media_type=each.mime) for each in shown if isinstance(each, Picture)]
    text = "\n\n".join(each.text for each in shown if isinstance(each, Text)) or "[a figure]"
    return ToolReturn(text, content=pictures or None, metadata=execution)


def _entry(info: FileInfo, path: str) -> FileEntry:
    size = info.size if info.kind == "file" else None
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=info.is_dir, size=size)
