"""Inspect's `self_check`: what a `SandboxEnvironment` must do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from agent_tools import AsyncSandbox
from agent_tools.command import NOT_EXECUTABLE

TIMEOUT = 3600.0  # seconds of a command, unless it says otherwise
EXPECTED = {
    "test_exec_as_user": "a sandbox has one user and no root, by design: it adds a user as root",
}


class Environment(SandboxEnvironment):
    """An environment of Inspect's on a sandbox of ours."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    async def sample_cleanup(cls, *_: Any) -> None:
        """Leave it to the fixture."""

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError(f"the sandbox has one user; it cannot run as {user!r}")
        stdin = input.encode() if isinstance(input, str) else input
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        given = {"stdin": stdin, "cwd": cwd or "", "env": env, "timeout": timeout or TIMEOUT, "max_output": most}
        done = await self.sandbox.run_command(cmd, **given)  # type: ignore[arg-type]
        if done.timed_out:
            raise TimeoutError(f"the command ran over {timeout} s")
        if done.exit_code == NOT_EXECUTABLE:
            raise PermissionError(errno.EACCES, done.stderr.decode())
        out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        if done.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, out or err)
        return ExecResult(done.ok, done.exit_code, out, err)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self.sandbox.write_file(file, contents)

    async def read_file(self, file: str, text: bool = True) -> Any:
        try:
            most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
            data = await self.sandbox.read_file(file, max_bytes=most + 1)
        except OSError as exc:
            if exc.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from exc
            raise
        if len(data) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data


@pytest.fixture(scope="session")
def environment(new_async_sandbox: Callable[[], AsyncSandbox]) -> Environment:
    return Environment(new_async_sandbox())


@pytest.fixture
def sandbox_env(environment: Environment) -> Environment:
    return environment
