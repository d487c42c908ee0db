"""LangChain's `SandboxIntegrationTests`: what deepagents asks of a backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

from agent_tools import Sandbox

TIMEOUT = 120.0  # seconds of a command, unless it says otherwise
EXPECTED: dict[str, str] = {}


class Backend(BaseSandbox):
    """A deepagents backend: `ls`, `read`, `write`, `edit`, `grep` and `glob` are theirs, made of `execute`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        done = self.sandbox.run_command(command, timeout=timeout or TIMEOUT)
        return ExecuteResponse(output=done.output, exit_code=done.exit_code, truncated=done.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._write(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._read(path) for path in paths]

    def _write(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self.sandbox.write_file(path, data)
        except OSError as exc:
            return _code(exc)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self.sandbox.read_file(path))
        except OSError as exc:
            return FileDownloadResponse(path=path, error=_code(exc))


def _code(error: OSError) -> str:
    codes = {
        FileNotFoundError: "file_not_found",
        IsADirectoryError: "is_directory",
        PermissionError: "permission_denied",
    }
    return codes.get(type(error), "invalid_path")


class TestBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, new_sandbox: Callable[[], Sandbox]) -> Backend:
        return Backend(new_sandbox())
