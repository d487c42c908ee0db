"""The code interpreter's sandbox, as programs use it."""

from __future__ import annotations

from pathlib import Path

from agent_tools.execution import Result
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter


def test_commands_and_files_are_those_of_the_codes_own_sandbox(process_runtime: Runtime, work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        tool.as_sandbox.write_file("a.txt", "20")
        assert tool.as_sandbox.run_command("cat a.txt").stdout == b"20"
        assert tool.run("int(open('a.txt').read()) + 1").result == Result({"text/plain": "21"})
        assert tool.as_sandbox.container == tool.sandbox is not None
    assert not tool.as_sandbox.is_alive
