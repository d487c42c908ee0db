"""The code interpreter's sandbox, as programs use it."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
from dataclasses import fields
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from agent_tools import AsyncSandbox, Sandbox
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.isolation import Isolation
from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.limits import GIB
from agent_tools.results.execution import Result, finished
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox.options import Keywords, Options
from agent_tools.tools import CodeInterpreter
from tests.doubles import ProcessEngine


def pixel() -> str:
    """A picture, as base64."""
    Image.new("RGB", (1, 1)).save(file := BytesIO(), "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_commands_and_files_are_those_of_the_codes_own_sandbox(process_runtime: Runtime, work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        tool.as_sandbox.write_file("a.txt", "20")
        assert tool.as_sandbox.run_command("cat a.txt").stdout == b"20"
        assert tool.run("int(open('a.txt').read()) + 1").result == Result({"text/plain": "21"})
        assert tool.as_sandbox.container == tool.sandbox is not None
    assert not tool.as_sandbox.is_alive


class FullDisk(ProcessEngine):
    """Starts no sandbox: this machine has no room for its folders."""

    def start(self, spec: SandboxSpec) -> EngineContainer:
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


def test_options_are_keywords_too_and_win(process_runtime: Runtime, work_dir: Path) -> None:
    with CodeInterpreter({"timeout": 5, "cpus": 2}, timeout=3, work_dir=work_dir, runtime=process_runtime) as tool:
        assert (tool.options.timeout, tool.options.isolation.cpus) == (3, 2)
        assert tool.work_dir == str(work_dir)
    assert Sandbox(memory="512m", runtime="runsc").options.isolation.runtime == "runsc"
    assert AsyncSandbox(limits={"max_work_dir_bytes": "1g"}).sync.options.limits.max_work_dir_bytes == GIB
    with pytest.raises(InvalidParams, match=r"no option 'timeot'\. Did you mean 'timeout'"):
        CodeInterpreter(timeot=3)  # type: ignore[call-arg]


def test_every_option_is_a_keyword() -> None:
    known = {each.name for kind in (Options, Isolation) for each in fields(kind)} - {"recipe"}
    further = {"packages", "debian_packages", "flavour", "audit_code", "audit_required"}
    assert Keywords.__annotations__.keys() - further == (
        known - {"runtime", "hostcalls"} | {"name", "name_for_human", "args_format"}
    )


def test_a_fresh_folder_goes_with_its_instance(process_runtime: Runtime) -> None:
    one, other = (CodeInterpreter(work_dir="fresh", runtime=process_runtime) for _ in range(2))
    with one, other:
        one.run("open('mine', 'w').write('1')")
        assert other.run("import os; os.listdir()").value == []
        folder = Path(one.work_dir)
        assert (folder / "mine").read_text() == "1"
    assert not folder.exists()


def test_instances_that_share_the_default_folder_are_warned_of(
    process_runtime: Runtime, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFAULT_WORKSPACE", str(work_dir))
    with CodeInterpreter(runtime=process_runtime) as one, CodeInterpreter(runtime=process_runtime) as other:
        one.run("1")
        with pytest.warns(UserWarning, match="share the folder .*work_dir='fresh'"):
            other.run("1")
        other.run("1")  # which is told once
    with CodeInterpreter(runtime=process_runtime) as third:
        third.run("1")


def test_a_file_that_is_not_there_is_an_error_that_says_what_is(
    process_runtime: Runtime, work_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "types.csv").write_text("a")
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        with pytest.raises(ToolServiceError, match=r"typo.csv' cannot be had: no such file .* there is 'types.csv'"):
            tool.run("open('ran', 'w')", files=[str(tmp_path / "typo.csv")])
        with pytest.raises(ToolServiceError, match="There is no folder"):
            asyncio.run(tool.arun("open('ran', 'w')", files=[str(tmp_path / "none" / "typo.csv")]))
        assert tool.run("import os; os.listdir()").value == []
        told = finished(tool.stream("1", files=["/typo.csv"]))  # a model is told, and goes on
        assert (told.ok, told.value) == (False, 1)


def test_figures_are_numbered_and_replace_nothing(process_runtime: Runtime, work_dir: Path) -> None:
    (work_dir / "figure-007.jpg").write_text("mine")
    draw = f"import base64\nfrom IPython.display import Image, display\nImage(base64.b64decode({pixel()!r}))"
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        first = tool.run(draw).figures
        (work_dir / "figure-009.png").symlink_to("elsewhere")
        second = tool.run(draw).figures
    assert [Path(path).name for path in (*first, *second)] == ["figure-008.png", "figure-010.png"]
    assert not (work_dir / "elsewhere").exists()
