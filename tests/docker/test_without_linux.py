"""The host without Linux, as on macOS: sandboxes of the engine here, from a process that lacks what only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_tools.engines.context import tag_for

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
SANDBOX = """
import sys
from agent_tools import Sandbox

assert sys.platform == "darwin"
with Sandbox({"work_dir": sys.argv[1]}) as sandbox:
    told = sandbox.run_code("open('made', 'w').write('by code'); print(open('given').read()); x = 41")
    print(told.stdout, told.error, sandbox.run_code("x + 1").value)
    print(sandbox.run_command("cat made; exit 3").stdout, sandbox.run_command("exit 3").exit_code)
    sandbox.write_file("later", b"from outside")
    print(sandbox.run_code("print(open('later').read())").stdout, sandbox.read_file("made"))
    print(sandbox.run_code("while True: pass", timeout=1).error)
"""
POOL = """
from agent_tools import Sandbox

with Sandbox({"pool": 1}) as sandbox:
    sandbox.prepare_pool(60)
    print(sandbox.run_code("2 + 2").value)
"""
FIGURE = """
from agent_tools.tools import CodeInterpreter

with CodeInterpreter() as tool:
    execution = tool.run("import matplotlib.pyplot as plt\\nplt.title('\\u6f22\\u5b57'); plt.plot([1]); plt.show()")
    print([list(each.data) for each in execution.outputs], execution.stderr)
"""
SOCKETS = """
from agent_tools.tools import CodeInterpreter

print(CodeInterpreter({"transport": "sockets"}).run("1"))
"""
TAG = "from agent_tools.engines.context import tag_for; print(tag_for())"


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.without_linux", *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="agent-tools-test-") as workspace:  # and not one in the checkout
        environment = {**os.environ, "COLUMNS": "200", "DEFAULT_WORKSPACE": workspace}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


def program(folder: Path, code: str) -> Path:
    path = folder / "program.py"
    path.write_text(code)
    return path


def test_code_commands_files_and_deadlines_work(docker_runtime: object, work_dir: Path, tmp_path: Path) -> None:
    (work_dir / "given").write_text("by the host")
    done = run(program(tmp_path, SANDBOX), work_dir)
    lines = done.stdout.splitlines()
    assert lines[:4] == ["by the host", " None 42", "b'by code' 3", "from outside"]
    assert "by code" in lines[4]
    assert lines[5].startswith("TimedOut(")
    assert (work_dir / "made").read_text() == "by code"
    assert done.stderr == ""


def test_sandboxes_are_made_ahead(docker_runtime: object, tmp_path: Path) -> None:
    done = run(program(tmp_path, POOL))
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_figures_have_their_fonts(docker_runtime: object, tmp_path: Path) -> None:
    assert run(program(tmp_path, FIGURE)).stdout == "[['text/plain', 'image/png']] \n"


def test_the_image_is_the_same_one(docker_runtime: object, tmp_path: Path) -> None:
    assert run(program(tmp_path, TAG)).stdout.strip() == tag_for()


def test_the_transport_that_needs_linux_says_so(docker_runtime: object, tmp_path: Path) -> None:
    done = run(program(tmp_path, SOCKETS), check=False)
    assert "transport='sockets' needs Linux on this side, too" in done.stderr.splitlines()[-1]


def test_the_command_line_works(docker_runtime: object, tmp_path: Path) -> None:
    assert run("agent_tools", "run", program(tmp_path, "print(6 * 7)")).stdout == "42\n"
    assert run("agent_tools", "doctor", check=False).stdout.count(" fail ") == 0
    assert run("agent_tools", "clean").returncode == 0
