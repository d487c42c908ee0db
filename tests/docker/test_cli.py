"""The command line against a real engine, as a person would use it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_tools.runtime.docker import context
from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.docker.origin import origin_of, origin_on
from supply.audit import pinned
from tests.bills import fits_schema

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "agent_tools"]


def _run(*arguments: str, code: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=code, capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )


def test_run_prints_what_the_code_prints_and_returns(work_dir: Path) -> None:
    done = _run(
        "run", "--work-dir", str(work_dir), "-c", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n42\n", "err\n")


def test_run_takes_a_script_with_files(work_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(open('data.txt').read())")
    (tmp_path / "data.txt").write_text("content")
    done = _run("run", "--work-dir", str(work_dir), "-f", str(tmp_path / "data.txt"), str(tmp_path / "script.py"))
    assert (done.returncode, done.stdout) == (0, "content\n")


def test_run_takes_standard_input_and_tells_failure_by_its_exit_code(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), code="1/0")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_run_obeys_its_time_limit(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), "-t", "1", "-c", "import time; time.sleep(50)")
    assert done.returncode == 1
    assert "Timeout: Code execution exceeded the time limit." in done.stderr


def test_run_saves_figures_and_shows_their_paths(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), "-c", "plt.plot([1])\nplt.show()")
    path = Path(done.stderr.split("figure: ")[1].strip())
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_had_is_an_error(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), "-f", "/no/such/file", "-c", "1")
    assert done.returncode == 2  # bad arguments, as its help has it
    assert "'/no/such/file': no such file or directory" in done.stderr


def test_doctor_probes_a_real_sandbox(tmp_path: Path) -> None:
    done = _run("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for fact in ("capabilities", "NoNewPrivs", "read-only", "memory", "network mode", "seccomp profile", "log"):
        assert fact in done.stdout
    assert "fail" not in done.stdout


def test_image_show_names_the_image_in_use() -> None:
    done = _run("image", "show")
    assert f"{context.tag_for()}: present" in done.stdout


def test_the_image_says_which_base_it_was_built_on(docker_engine: DockerEngine) -> None:
    facts = docker_engine.image_facts(context.tag_for())
    origin = origin_of(facts)
    base = docker_engine.image_facts(origin.base)
    layers = base["RootFS"]["Layers"]
    assert facts["RootFS"]["Layers"][: len(layers)] == layers
    assert origin == origin_on(origin.base, base)
    assert f"built on {origin.base} ({origin.digest})" in _run("image", "show").stdout


def test_the_images_bill_of_materials_names_all_that_is_pinned_and_the_packages_of_its_base() -> None:
    done = _run("image", "sbom")
    assert fits_schema(done.stdout), done.stderr
    found = {each["purl"].partition("@")[0] for each in json.loads(done.stdout)["components"]}
    assert {f"pkg:pypi/{name}" for name in pinned(ROOT / "docker" / "requirements.lock")} <= found
    assert {"pkg:deb/debian/libc6", "pkg:generic/python"} <= found


def test_image_build_if_missing_does_nothing_when_it_is_there() -> None:
    done = _run("image", "build", "--if-missing")
    assert done.returncode == 0
    assert "is there" in done.stderr


def test_clean_counts_what_it_removed() -> None:
    done = _run("clean")
    assert done.returncode == 0
    assert "stray sandboxes removed" in done.stdout


def test_repl_asks_nobody_where_its_input_is_no_terminal(work_dir: Path) -> None:
    done = _run("repl", "--work-dir", str(work_dir), code="x = 2\nprint(x + 1)\n")
    assert (done.returncode, done.stdout) == (0, "3\n")


def test_repl_keeps_variables_and_interrupts(work_dir: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    command = [*COMMAND, "repl", "--work-dir", str(work_dir)]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        _expect(master, ">>> ")
        _type(master, "x = 41")
        _expect(master, ">>> ")
        _type(master, "x + 1")
        assert "42" in _expect(master, ">>> ")
        _type(master, "def f():")
        _type(master, "    return 'block'")
        _type(master, "")
        _type(master, "f()")
        assert "block" in _expect(master, "'block'\r\n>>> ")
        _type(master, "exit")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert "x = 41" in (tmp_path / "agent_tools" / "history").read_text()


def _type(fd: int, line: str) -> None:
    os.write(fd, f"{line}\n".encode())


def _expect(fd: int, text: str) -> str:
    seen = ""
    deadline = time.monotonic() + 30
    while text not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(fd, 4096).decode(errors="replace")
    return seen


def test_a_derived_image_has_the_packages_asked_for(docker_engine: DockerEngine, work_dir: Path) -> None:
    done = subprocess.run(
        [
            *COMMAND,
            "run",
            "--work-dir",
            str(work_dir),
            "--package",
            "sortedcontainers==2.4.0",
            "-c",
            "import sortedcontainers",
        ],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tag = context.tag_for(["sortedcontainers==2.4.0"])
    assert docker_engine.has_image(tag)
    docker_engine.remove_image(tag)
