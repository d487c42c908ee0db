"""State that outlives a sandbox, as the documentation and the command line have it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools import CodeInterpreter, Sandbox
from agent_tools.errors import ToolServiceError
from agent_tools.runtime.runtime import Runtime

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "state.md").read_text()


def test_the_page_s_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    source, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)[:2]
    exec(source, {})
    assert capsys.readouterr().out == printed


def test_the_page_names_the_limits_as_they_are() -> None:
    from agent_tools.gateway.config import GatewayConfig
    from agent_tools.limits import GIB, MIB, Limits

    limits, config = Limits(), GatewayConfig("http://localhost/v1")
    assert (limits.max_variables_bytes, limits.max_archive_bytes) == (GIB, GIB)
    assert (limits.variables_timeout, limits.max_variables) == (30.0, 10_000)
    assert (config.keep_variables, config.save_every) == (True, 0)
    assert (config.max_variables_bytes, config.variables_timeout) == (512 * MIB, 30.0)
    for name in ("max_variables_bytes", "variables_timeout", "max_variables", "keep_variables", "save_every"):
        assert f"| `{name}` |" in PAGE


NAMES_FOR_TYPES = """
from typing import *
Id = NewType('Id', int); P = ParamSpec('P', default=[int]); T = TypeVarTuple('T')
type Row[K] = list[K]
type Rows = list[Row[Id]]
class Typed(TypedDict): id: Id
class Known(NamedTuple): id: Id = Id(3)
def first(rows: Rows) -> Id: return rows[0][0]
known = Known()
"""
KNOWN = """
hints = get_type_hints(first)
[hints['return'] is Id is get_type_hints(Typed)['id'], hints['rows'] is Rows, Rows.__value__ == list[Row[Id]],
 type(known) is Known, first([[Id(7)]]), P.__default__ == [int]]
"""


def test_names_for_types_come_back_with_what_speaks_of_them() -> None:
    with Sandbox() as first, Sandbox() as second:
        assert first.run_code(NAMES_FOR_TYPES).ok
        saved = first.save(variables=True)
        assert saved.variables.is_complete, str(saved)
        second.load(saved)
        assert second.run_code(KNOWN).value == [True, True, True, True, 7, True]


def _repl(code: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "agent_tools", "repl", "--work-dir", str(cwd / "work"), *arguments]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_session_of_the_command_line_is_resumed(work_dir: Path) -> None:
    said = _repl("x = 41\nopen('a', 'w').write('kept')\n", "--resume", "mine.state", cwd=work_dir)
    assert "A new session; it is saved in mine.state" in said
    assert "Variables kept: x." in said
    assert (work_dir / "mine.state").stat().st_mode & 0o777 == 0o600
    (work_dir / "work" / "a").unlink()
    said = _repl("print(x + 1, open('a').read())\nx = 1\n", "--resume", "mine.state", cwd=work_dir)
    assert "42 kept" in said
    said = _repl("print(x)\n%save_session other.state\n", "--resume", "mine.state", cwd=work_dir)
    assert said.startswith("1\n")
    assert "Saved in other.state" in said
    assert [path.name for path in work_dir.glob(".*.part")] == []


def test_a_file_that_is_no_session_is_refused_and_left_alone(work_dir: Path) -> None:
    (work_dir / "text.txt").write_text("no session")
    command = [sys.executable, "-m", "agent_tools", "repl", "--work-dir", str(work_dir / "work")]
    done = subprocess.run(
        [*command, "--resume", str(work_dir / "text.txt")], input="x = 1\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "could not be resumed" in done.stderr
    nowhere = [*command, "--resume", str(work_dir / "nowhere" / "mine.state")]
    done = subprocess.run(nowhere, input="x = 1\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "its folder does not exist" in done.stderr
    assert (work_dir / "text.txt").read_text() == "no session"


def test_the_tool_saves_and_loads(docker_runtime: Runtime, tmp_path: Path, work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir / "a")}, runtime=docker_runtime) as tool:
        tool.call("x = 6 * 7")
        saved = tool.save()
    with CodeInterpreter({"work_dir": str(work_dir / "b")}, runtime=docker_runtime) as tool:
        assert tool.load(saved.tar).kept == ("x",)
        assert "42" in tool.call("x")
        with pytest.raises(ToolServiceError, match="give what `save` made"):
            tool.load(b"no archive")


def test_one_that_needs_more_memory_than_there_is_costs_itself_and_not_the_kernel(docker_runtime: Runtime) -> None:
    grows = "import os\nclass Grows:\n  def __reduce__(self):\n    return list, ([bytearray(os.urandom(1)) * 2**30],)\n"
    with Sandbox({"memory": 512 * 2**20}, runtime=docker_runtime) as sandbox:
        sandbox.run_code(f"{grows}first = 1; grows = Grows(); last = 2; pid = os.getpid()")
        report = sandbox.save(variables=True).variables
        assert [each.name for each in report.missing] == ["grows"], report
        assert "memory" in report.missing[0].reason.lower()
        assert {"first", "last"} <= set(report.kept)
        assert sandbox.run_code("os.getpid() == pid, first + last").value == (True, 3)


def test_what_owns_a_descriptor_may_go_while_variables_are_saved(pair: tuple[Sandbox, Sandbox]) -> None:
    first, second = pair
    code = "import mmap, numpy\nfrom scipy.special import expit\nmapped = mmap.mmap(-1, 1)\nopen('a', 'w').write('a')\n"
    code += "class Gives:\n    def __init__(self):\n        self.map = numpy.memmap('a')\n"
    code += "    def __reduce__(self):\n        self.map = None\n        return Gives, ()\n"
    first.run_code(
        f"{code}a = [1]\nb = [a]\ngives = [Gives() for _ in range(9)]\nsplit = numpy.frompyfunc(str, 1, 1)\nc = [a]"
    )
    saved = first.save(variables=True)
    reasons = [(each.name, each.reason.partition(":")[0]) for each in saved.variables.missing]
    assert reasons == [("mapped", "TypeError"), ("split", "PicklingError")]
    second.load(saved)
    assert second.run_code("print(b[0] is a, c[0] is a, expit(0))").stdout == "True True 0.5\n"
    for sandbox in pair:
        sandbox.reset()


def test_no_saving_outlives_its_time(docker_runtime: Runtime) -> None:
    deaf = "class Deaf:\n  def __reduce__(self):\n    while True:\n      try:\n        while True: pass\n"
    deaf += "      except BaseException: pass\n"
    with Sandbox({"limits": {"variables_timeout": 3.0}}, runtime=docker_runtime) as sandbox:
        sandbox.run_code(
            f"{deaf}many = [Deaf() for _ in range(1)]\nfor n in range(5): globals()[f'd{{n}}'] = Deaf()\nx = 1"
        )
        began = time.monotonic()
        report = sandbox.save(variables=True).variables
        assert time.monotonic() - began < 20
        assert len(report.missing) == 6
        assert "x" in report.kept
        assert "Deaf" not in sandbox.run_command("ps -ef || true").stdout.decode()


@pytest.fixture(scope="module")
def pair(docker_runtime: Runtime) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two sandboxes, of which one saves what the other one loads."""
    with Sandbox(runtime=docker_runtime) as first, Sandbox(runtime=docker_runtime) as second:
        first.run_code("0")
        second.run_code("0")
        yield first, second


def test_what_a_pickle_does_it_does_in_the_sandbox(pair: tuple[Sandbox, Sandbox], tmp_path: Path) -> None:
    first, second = pair
    mark = tmp_path / "mark"
    command = f"mkdir -p {tmp_path}; id > {mark}"
    attack = f"import os\nclass Attack:\n  def __reduce__(self): return os.system, ({command!r},)\n"
    first.run_code(f"{attack}x = Attack()")
    assert second.load(first.save(variables=True)).is_complete
    assert "uid=" in second.run_command(f"cat {mark}").stdout.decode()
    assert not mark.exists()


def test_what_was_loaded_survives_a_kernel_that_is_killed(pair: tuple[Sandbox, Sandbox]) -> None:
    first, second = pair
    first.restart()
    second.restart()
    first.run_code("x = [1, 2]")
    second.load(first.save(variables=True))
    second.run_code("y = 3")
    second.run_code("import os; os.kill(os.getpid(), 9)")
    assert second.run_code("x, y").value == ([1, 2], 3)
    again = second.save(variables=True)
    assert {"x", "y"} <= set(again.variables.kept)
