"""OpenAI's Agents SDK: a client whose sessions give a `SandboxAgent` one of our sandboxes as its workspace.

The contract is that of https://openai.github.io/openai-agents-python/sandbox/: commands, files, the workspace as a tar.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import uuid
from collections.abc import Set as AbstractSet
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NoReturn

from anyio import to_thread

from agent_tools import AsyncSandbox
from agent_tools.errors import FileRejected, SandboxGone
from agent_tools.extras import extra
from agent_tools.integrations.common import ending_of

MAX_NAME = 4096  # bytes of a path, as Linux has it


def without(archive: IO[bytes], skipped: AbstractSet[PurePosixPath], kept: IO[bytes]) -> None:
    """Copy a tar, but for some paths and what lies below them.

    Raises:
        FileRejected: it is no tar, or has a path that is longer than a path can be.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r|") as old, tarfile.open(fileobj=kept, mode="w|") as new:
            for member in old:
                old.members = []  # type: ignore[attr-defined]  # it would keep them all
                if len(member.name) > MAX_NAME or len(member.linkname) > MAX_NAME:
                    raise FileRejected("The workspace's archive has a path that no file can have.")
                if member.issparse():  # its holes would cost the host their size
                    raise FileRejected("The workspace's archive has a sparse file.")
                path = PurePosixPath(member.name)
                if skipped.isdisjoint({path, *path.parents}):
                    new.addfile(_plain(member), old.extractfile(member) if member.isreg() else None)
                    new.members = []  # type: ignore[attr-defined]
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as exc:
        raise FileRejected(f"The workspace's archive is malformed: {exc!s:.200}") from exc


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member without its extra headers, which are untrusted."""
    member.pax_headers = {}
    return member


with extra("openai-agents"):
    from agents.sandbox import Manifest
    from agents.sandbox.errors import (
        ConfigurationError,
        ErrorCode,
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.session import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
        BaseSandboxSession,
        SandboxSession,
        SandboxSessionState,
    )
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, User
    from pydantic import ConfigDict, Field

COMMAND_TIMEOUT = 3600.0  # seconds of a command, unless the agent says otherwise
MAX_IN_MEMORY = 8 * 2**20  # bytes of a workspace's tar that are not put on disk


class AgentToolsSandboxClientOptions(BaseSandboxClientOptions):
    """The options of a sandbox, those of `agent_tools.CodeInterpreter`."""

    model_config = ConfigDict(extra="forbid")  # a misspelt option is an error

    type: Literal["agent_tools"] = "agent_tools"
    cfg: dict[str, Any] = Field(default_factory=dict)


class AgentToolsSandboxSessionState(SandboxSessionState):
    """A session as JSON: its options, manifest and snapshot."""

    type: Literal["agent_tools"] = "agent_tools"
    cfg: dict[str, Any] = Field(default_factory=dict)


class AgentToolsSandboxSession(BaseSandboxSession):
    """A session on a sandbox, which starts and ends with it."""

    def __init__(self, state: AgentToolsSandboxSessionState) -> None:
        self.state: AgentToolsSandboxSessionState = state
        self.sandbox = AsyncSandbox(state.cfg)

    async def running(self) -> bool:
        """Return whether the container runs."""
        return self.sandbox.is_alive

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a file."""
        _refuse_users(user)
        name = str(await self._validate_path_access(path))
        try:
            return io.BytesIO(await self.sandbox.read_file(name))
        except FileNotFoundError as exc:
            raise WorkspaceReadNotFoundError(path=path, cause=exc) from exc
        except OSError as exc:
            raise WorkspaceArchiveReadError(path=path, cause=exc, retryable=False) from exc

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file; folders above it are made."""
        _refuse_users(user)
        name = str(await self._validate_path_access(path, for_write=True))
        try:
            await self.sandbox.write_file(name, data.read())
        except OSError as exc:
            raise WorkspaceArchiveWriteError(path=path, cause=exc, retryable=False) from exc

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar, without what the manifest calls ephemeral."""
        saved = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        await self.sandbox.save_to(saved, variables=False)  # type: ignore[arg-type]
        saved.seek(0)
        skipped = {PurePosixPath(path.as_posix()) for path in self._persist_workspace_skip_relpaths()}
        if not skipped:
            return saved  # type: ignore[return-value]
        kept = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        with saved:
            await to_thread.run_sync(without, saved, skipped, kept)
        kept.seek(0)
        return kept  # type: ignore[return-value]

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar into the workspace, within the sandbox."""
        try:
            await self.sandbox.load(data)  # type: ignore[arg-type]
        except OSError as exc:
            raise WorkspaceArchiveWriteError(path=Path(self.sandbox.root), cause=exc, retryable=False) from exc

    async def _ensure_backend_started(self) -> None:
        await self.sandbox.start()

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        try:
            done = await self.sandbox.run_command([str(each) for each in command], timeout=timeout or COMMAND_TIMEOUT)
        except SandboxGone as exc:
            raise ExecTransportError(command=command, cause=exc, message=str(exc), retryable=False) from exc
        if done.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout or COMMAND_TIMEOUT)
        note = b"\n[of the output, the last bytes alone are here]\n" if done.truncated else b""
        note += ending_of(done).encode()
        return ExecResult(stdout=done.stdout, stderr=done.stderr + note, exit_code=done.exit_code)

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        _refuse_users(user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _shutdown_backend(self) -> None:
        await self.sandbox.close()


class AgentToolsSandboxClient(BaseSandboxClient[AgentToolsSandboxClientOptions | None]):
    """`RunConfig(sandbox=SandboxRunConfig(client=AgentToolsSandboxClient()))`: a sandbox for each session."""

    backend_id = "agent_tools"
    supports_default_options = True

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: AgentToolsSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Return a session, whose sandbox starts with it.

        Raises:
            ConfigurationError: the manifest has another root than the sandbox.
        """
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        if manifest.root != AsyncSandbox.root:
            _refuse(f"The workspace is {AsyncSandbox.root}; the manifest has the root {manifest.root!r}.")
        session_id = uuid.uuid4()
        state = AgentToolsSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            cfg=options.cfg if options else {},
        )
        return self._wrap_session(AgentToolsSandboxSession(state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Remove a session's sandbox."""
        if isinstance(inner := session._inner, AgentToolsSandboxSession):
            await inner.sandbox.close()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session in a sandbox of its own, whose files come from the state's snapshot."""
        if not isinstance(state, AgentToolsSandboxSessionState):
            raise TypeError(f"{type(state).__name__} is no state of a session of this client")
        state.assert_path_grants_rebound()
        state.workspace_root_ready = False
        return self._wrap_session(AgentToolsSandboxSession(state))

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state that `serialize_session_state` gave."""
        return self._deserialize_session_state_payload(payload, AgentToolsSandboxSessionState)


def _refuse_users(user: object) -> None:
    if user is not None:
        _refuse("The sandbox has one user: leave out `run_as` and `user`.")


def _refuse(message: str) -> NoReturn:
    raise ConfigurationError(message=message, error_code=ErrorCode.SANDBOX_CONFIG_INVALID, op="start", context={})
