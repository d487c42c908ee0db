"""Inspect: `Task(sandbox="agent-tools")`, a sandbox for each sample. Inspect finds it by an entry point.

`SandboxEnvironment` is theirs (https://inspect.aisi.org.uk/sandboxing.html), with its limits and exceptions.
"""

from __future__ import annotations

import errno
import re
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal, overload

import anyio

from agent_tools import AsyncSandbox
from agent_tools.errors import SandboxGone
from agent_tools.extras import extra
from agent_tools.integrations.common import ending_of, sandbox_of
from agent_tools.results.commands import NOT_EXECUTABLE, CommandResult

with extra("inspect"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from pydantic import BaseModel, ConfigDict

MAX_SHEBANG = 256  # bytes of a script's first line, as the kernel has it
TIMEOUT = 3600.0  # seconds of a command, unless it says otherwise


class AgentToolsConfig(BaseModel):
    """The options of a sandbox, by name: those of `agent_tools.CodeInterpreter`, e.g. `flavour` and `memory`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


@sandboxenv(name="agent-tools")
class AgentToolsSandboxEnvironment(SandboxEnvironment):
    """An environment of Inspect's on one of our sandboxes."""

    def __init__(self, sandbox: AsyncSandbox | dict[str, Any] | None = None) -> None:
        super().__init__()
        self.sandbox = sandbox_of(sandbox)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the options that a log holds."""
        return AgentToolsConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Start the sandbox of a sample. `config` is an `AgentToolsConfig`, or the path of one as JSON."""
        if isinstance(config, str):
            config = AgentToolsConfig.model_validate_json(await anyio.Path(config).read_bytes())
        made = cls(AsyncSandbox(config.model_dump() if config else None))
        try:
            await made.sandbox.start()
        except BaseException:
            await made.sandbox.close()
            raise
        return {"default": made}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Remove the sandboxes of a sample."""
        async with AsyncExitStack() as ends:  # all end, also if one fails
            for environment in environments.values():
                ends.push_async_callback(environment.as_type(cls).sandbox.close)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - theirs
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; being cancelled ends it."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"The sandbox has one user; nothing in it can run as {user!r}.")
        stdin = input.encode() if isinstance(input, str) else input
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        run = partial(
            self.sandbox.run_command, stdin=stdin, cwd=cwd or "", env=env, timeout=timeout or TIMEOUT, max_output=most
        )
        try:
            done = await run(cmd)
            if done.exit_code == NOT_EXECUTABLE and (interpreted := await self._interpreted(*_refused(cmd, done))):
                done = await run(interpreted)
        except SandboxGone as exc:
            raise SandboxUnavailableError(str(exc)) from exc
        return _result(done, timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; folders above it are made."""
        await self.sandbox.write_file(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as UTF-8 or as bytes."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = await self.sandbox.read_file(file, max_bytes=most + 1)
        if len(data) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def _interpreted(self, script: str = "", *words: str) -> list[str]:
        """Return the command that reads a script of /tmp, where nothing is executed; Inspect sets samples up so."""
        if not script.startswith("/tmp/") or not await self.sandbox.exists(script):
            return []
        if not (await self.sandbox.stat(script)).mode & 0o111:
            return []
        head = (await self.sandbox.read_file(script, max_bytes=MAX_SHEBANG)).split(b"\n")[0].decode("utf-8", "replace")
        interpreter = head[2:].split(maxsplit=1) if head.startswith("#!") else []
        return [*(interpreter or ["/bin/sh"]), script, *words]


def _refused(command: list[str], done: CommandResult) -> list[str]:
    """Return the script of /tmp that could not be executed, as the last line of stderr has it, with its arguments."""
    last = done.texts[1].rstrip().rpartition("\n")[2]
    for at, word in enumerate(command):
        if re.search(rf"(^|[ ‘']){re.escape(word)}[’']?: Permission denied$", last):
            return command[at:]
    return []


def _result(done: CommandResult, timeout: int | None) -> ExecResult[str]:
    """Return the result of a command, or raise Inspect's exception for it."""
    stdout, stderr = done.texts
    if done.timed_out:
        raise TimeoutError(f"The command ran longer than {timeout or TIMEOUT:g} s.")
    if done.exit_code == NOT_EXECUTABLE:
        raise PermissionError(errno.EACCES, stderr)
    if done.truncated:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout or stderr)
    return ExecResult(done.ok, done.exit_code, stdout, stderr + ending_of(done))
