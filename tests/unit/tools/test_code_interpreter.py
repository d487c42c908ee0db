"""The code interpreter's sandbox, as programs use it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent_tools.errors import ToolServiceError
from agent_tools.execution import Result
from agent_tools.runtime.engine import Container, SandboxSpec
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.doubles import ProcessEngine


def test_commands_and_files_are_those_of_the_codes_own_sandbox(process_runtime: Runtime, work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        tool.as_sandbox.write_file("a.txt", "20")
        assert tool.as_sandbox.run_command("cat a.txt").stdout == b"20"
        assert tool.run("int(open('a.txt').read()) + 1").result == Result({"text/plain": "21"})
        assert tool.as_sandbox.container == tool.sandbox is not None
    assert not tool.as_sandbox.is_alive


class FullDisk(ProcessEngine):
    """Starts no sandbox: this machine has no room for its folders."""

    def start(self, spec: SandboxSpec) -> Container:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/run/folder")


def test_a_sandbox_that_finds_no_room_on_the_host_is_a_failure_of_the_tool(work_dir: Path) -> None:
    runtime = Runtime(FullDisk(), lambda packages: "none")
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=runtime) as tool, pytest.raises(ToolServiceError) as full:
        tool.run("1")
    assert full.value.code == "SandboxStartError"
    assert full.value.message == (
        "The sandbox could not be started: [Errno 28] No space left on device: '/run/folder'. "
        "Free disk space there, and try again."
    )
