"""deepagents: a backend whose commands and files are those of a sandbox.

`SandboxBackendProtocol` is theirs (https://docs.langchain.com/oss/python/deepagents/backends); reading, writing,
searching and editing come from their `BaseSandbox`, which makes them of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_tools import AsyncSandbox, CommandResult
from agent_tools.extras import extra
from agent_tools.integrations.common import ending_of, sandbox_of

with extra("deepagents"):
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileOperationError,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox

TIMEOUT = 120.0  # seconds of a command, unless it says otherwise


class AgentToolsBackend(BaseSandbox):
    """`create_deep_agent(backend=AgentToolsBackend())`: the files and commands of a sandbox.

    Args:
        sandbox: the sandbox to use; one with default options otherwise. It starts with its first use.
        timeout: seconds of a command, unless the agent says otherwise.
    """

    def __init__(self, sandbox: AsyncSandbox | dict[str, Any] | None = None, *, timeout: float = TIMEOUT) -> None:
        self.sandbox = sandbox_of(sandbox)
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The sandbox's name in this process."""
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command of the shell."""
        seconds = timeout or self._timeout
        return _response(self.sandbox.sync.run_command(command, timeout=seconds), seconds)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command of the shell; being cancelled ends it."""
        seconds = timeout or self._timeout
        return _response(await self.sandbox.run_command(command, timeout=seconds), seconds)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; the result has an error for each that failed."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; the result has an error for each that failed."""
        return [self._download(path) for path in paths]

    def close(self) -> None:
        """Remove the sandbox."""
        self.sandbox.sync.close()

    def _upload(self, path: str, data: bytes) -> FileOperationError | None:
        return _failure(path, lambda: self.sandbox.sync.write_file(path, data))

    def _download(self, path: str) -> FileDownloadResponse:
        found: list[bytes] = []
        error = _failure(path, lambda: found.append(self.sandbox.sync.read_file(path)))
        return FileDownloadResponse(path=path, content=found[0] if found else None, error=error)


def _failure(path: str, work: Callable[[], object]) -> FileOperationError | None:
    """Run a file operation; return deepagents' error code if it failed, else None."""
    if not path.startswith("/"):
        return "invalid_path"
    try:
        work()
    except FileNotFoundError:
        return "file_not_found"
    except IsADirectoryError:
        return "is_directory"
    except PermissionError:
        return "permission_denied"
    except OSError:
        return "invalid_path"
    return None


def _response(done: CommandResult, seconds: float) -> ExecuteResponse:
    note = f"\n[ended after {seconds:g} s, its time limit]" if done.timed_out else ending_of(done)
    return ExecuteResponse(output=done.output + note, exit_code=done.exit_code, truncated=done.truncated)
