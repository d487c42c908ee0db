"""The command line against a real engine, as a person would use it."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from agent_tools.engines import context
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image_origin import origin_of, origin_on
from agent_tools.guest.wire.sockets import await_input
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "agent_tools"]


def _run(*arguments: str, code: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=code, capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )


def test_run_is_python_with_a_script(work_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import asyncio, sys\nfrom pathlib import Path\n"
        "async def main(): return (Path(__file__).parent / 'data.txt').read_text()\n"
        "print(asyncio.run(main()), sys.argv[1:], __name__, input())\n"
        "print('err', file=sys.stderr)\nsys.exit(4)"
    )
    (tmp_path / "data.txt").write_text("content")
    before = ("run", "--work-dir", str(work_dir), "-f", str(tmp_path / "data.txt"))
    done = _run(*before, str(tmp_path / "script.py"), "a", "--work-dir", "-c", code="typed\n")
    assert done.stdout == "content ['a', '--work-dir', '-c'] __main__ typed\n"
    assert (done.returncode, done.stderr) == (4, "err\n")
    assert [each.name for each in work_dir.iterdir()] == ["data.txt"]  # the copy of the script is gone


def test_a_script_in_work_dir_runs_where_it_is_and_stays(work_dir: Path) -> None:
    folder = work_dir / "src"
    folder.mkdir()
    (folder / "helper.py").write_text("def double(x): return 2 * x")
    (folder / "main.py").write_text("from helper import double\nprint(double(21), __file__)")
    done = _run("run", "--work-dir", str(work_dir), str(folder / "main.py"))
    assert (done.returncode, done.stdout) == (0, "42 /workspace/src/main.py\n"), done.stderr
    assert (folder / "main.py").exists()


def test_run_passes_on_every_byte(work_dir: Path) -> None:
    code = (
        "import sys\nfor i in range(200_000): print(i)\nsys.stdout.flush()\nsys.stdout.buffer.write(bytes(range(256)))"
    )
    done = subprocess.run(
        [*COMMAND, "run", "--work-dir", str(work_dir), "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.stdout == b"".join(b"%d\n" % each for each in range(200_000)) + bytes(range(256))
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_leaves_ends_the_script(work_dir: Path) -> None:
    command = [*COMMAND, "run", "--work-dir", str(work_dir), "-c", "while True: print('y')"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(60) == 1


def test_run_takes_standard_input_and_tells_failure_by_its_exit_code(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), code="1/0")
    assert done.returncode == 1
    assert done.stderr.startswith('Traceback (most recent call last):\n  File "<stdin>", line 1')
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_run_obeys_its_time_limit(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), "-t", "1", "-c", "import time; time.sleep(50)")
    assert done.returncode == 124
    assert done.stderr == "agent-tools: It was ended at its time limit of 1 s; --timeout gives it more.\n"


def test_a_script_that_fills_work_dir_is_killed_and_reported(work_dir: Path, tmp_path: Path) -> None:
    code = "import time\nprint('printed', flush=True)\nopen('large', 'wb').write(bytes(9_000_000))\ntime.sleep(60)"
    out = tmp_path / "run.ipynb"
    before = ("--work-dir", str(work_dir), "--set", "max_work_dir_bytes=4m", "--notebook", str(out))
    done = _run("run", *before, "--json", "-c", code)
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"], told["stdout"], done.stderr) == (137, 137, "printed\n", "")
    assert told["error"] == "It was ended: it filled work_dir beyond 4,194,304 bytes (max_work_dir_bytes)."
    assert [Path(each["path"]).name for each in told["files"]] == ["large"]
    assert out.exists()


def test_run_refuses_a_time_limit_of_nothing(work_dir: Path) -> None:
    done = _run("run", "--work-dir", str(work_dir), "-t", "0", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "timeout must be above 0" in done.stderr


def test_an_interrupted_script_keeps_what_it_printed(work_dir: Path) -> None:
    code = "import time\nprint('printed', flush=True)\nopen('began', 'w').close()\ntime.sleep(60)"
    command = [*COMMAND, "run", "--work-dir", str(work_dir), "--json", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until((work_dir / "began").exists)
        process.send_signal(signal.SIGINT)
        told = json.loads(process.communicate(timeout=30)[0])
    assert (process.returncode, told["exit_code"], told["stdout"]) == (130, 130, "printed\n")


def test_an_interrupt_before_the_script_runs_has_its_exit_code(work_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; time.sleep(60)")
    command = [*COMMAND, "run", "--work-dir", str(work_dir), str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until((work_dir / "script.py").exists)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=30)
    assert (process.returncode, told, list(work_dir.iterdir())) == (130, (b"", b""), [])


def test_a_notebook_that_cannot_be_written_costs_only_itself(work_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere, session = tmp_path / "file" / "run.ipynb", tmp_path / "session"
    before = ("--work-dir", str(work_dir), "--notebook", str(nowhere))
    done = _run("run", *before, "--json", "-c", "print(1)")
    assert json.loads(done.stdout)["stdout"] == "1\n"
    assert (done.returncode, done.stderr) == (1, f"Error: The notebook was not written to {nowhere}: Not a directory\n")
    done = _run("repl", *before, "--resume", str(session), code="x = 1\n")
    assert done.returncode == 1
    assert session.exists()


def test_run_lists_files_and_figures_and_replaces_none(work_dir: Path) -> None:
    (work_dir / "figure-001.png").write_text("mine")
    (work_dir / "old.txt").write_text("old")
    code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\nprint(plt.get_fignums())\nopen('o.csv', 'w')"
    done = _run("run", "--work-dir", str(work_dir), "-c", code)
    assert done.stdout == "[]\n"
    assert done.stderr == f"figure: {work_dir}/figure-002.png\nfile: {work_dir}/o.csv (0 bytes)\n"
    assert (work_dir / "figure-002.png").read_bytes().startswith(b"\x89PNG")
    assert (work_dir / "figure-001.png").read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "step"),
    [
        ("import polars", "polars is not in the image. --flavour full has it."),
        (f"open({str(ROOT / 'README.md')!r})", f"-f {ROOT / 'README.md'} copies it there"),
        ("1 / 0", ""),
    ],
)
def test_run_says_what_can_be_done_about_an_error(work_dir: Path, code: str, step: str) -> None:
    done = _run("run", "--work-dir", str(work_dir), "-c", code)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert (step in said and said.startswith("agent-tools: ")) if step else "agent-tools" not in said


def test_set_gives_any_other_option_and_limit(work_dir: Path) -> None:
    before = ("run", "--work-dir", str(work_dir), "--set", 'env={"A": "1"}', "--set", "max_command_output=4")
    done = _run(*before, "--json", "-c", "import os; print(os.environ['A'] * 9)")
    told = json.loads(done.stdout)
    assert (told["stdout"], told["omitted"]["stdout"]) == ("111\n", 6)


def test_run_with_json_is_one_object(work_dir: Path) -> None:
    code = "import sys\nprint(1)\nopen('o.csv', 'w').write('a')\n1/0"
    done = _run("run", "--json", "--work-dir", str(work_dir), "-c", code)
    told = json.loads(done.stdout)
    assert (told["exit_code"], told["stdout"], told["error"]) == (1, "1\n", "ZeroDivisionError: division by zero")
    assert told["files"] == [{"path": f"{work_dir}/o.csv", "size": 1, "is_new": True}]
    assert (told["figures"], told["omitted"]) == ([], {"stdout": 0, "stderr": 0})
    assert (done.returncode, done.stderr) == (1, "")


FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"


@pytest.mark.parametrize(("how", "figure"), [("-c", ""), ("file", FIGURE), ("stdin", "")], ids=["-c", "file", "stdin"])
def test_run_writes_a_notebook_of_itself(work_dir: Path, tmp_path: Path, how: str, figure: str) -> None:
    code = f"{figure}print('printed')\n1 / 0"
    (tmp_path / "script.py").write_text(code)
    given = {"-c": ("-c", code), "file": (str(tmp_path / "script.py"),), "stdin": ("-",)}[how]
    out = tmp_path / "run.ipynb"
    done = _run("run", "--work-dir", str(work_dir), "--notebook", str(out), *given, code=code)
    assert (done.returncode, done.stdout) == (1, "printed\n")
    notebook = nbformat.read(out, as_version=4)
    nbformat.validate(notebook)
    (cell,) = notebook.cells
    assert cell.source == code
    printed, failed, *figures, error = cell.outputs
    assert (printed.name, printed.text, failed.name) == ("stdout", "printed\n", "stderr")
    drawn = [path.read_bytes() for path in work_dir.glob("figure-*.png")]
    assert [base64.b64decode(each.data["image/png"]) for each in figures] == drawn
    assert len(drawn) == bool(figure)
    assert (error.ename, error.evalue) == ("SystemExit", "1")


def test_run_at_a_terminal_is_typed_into_and_interrupted(work_dir: Path) -> None:
    master, slave = pty.openpty()
    code = "import time\ntry:\n print(input('name? '))\n while True: time.sleep(0.1)\nfinally: print('cleaned')"
    command = [*COMMAND, "run", "--work-dir", str(work_dir), "-c", code]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        _expect(master, "name? ")
        _type(master, "bob")
        _expect(master, "bob\r\nbob\r\n")  # as typed, and as printed
        process.send_signal(signal.SIGINT)
        _expect(master, "cleaned")
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)


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


def test_repl_runs_cell_magics_and_a_last_block_without_an_end(work_dir: Path) -> None:
    code = "%%bash\necho one\necho two\n\nprint(3)\n%%writefile a.txt\nfour"
    done = _run("repl", "--work-dir", str(work_dir), code=code)
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n3\nWriting a.txt\n"), done.stderr
    assert (work_dir / "a.txt").read_text() == "four\n"


def test_repl_goes_on_after_a_refusal(work_dir: Path) -> None:
    fill = "open('large', 'wb').write(bytes(9_000_000)); import time; time.sleep(60)"
    lines = ("x = 5", fill, "print(1)", "import os; os.unlink('large')", "print(x)")
    options = ("--work-dir", str(work_dir), "--set", "max_work_dir_bytes=4m", "-t", "60")
    done = _run("repl", *options, code="\n".join(lines) + "\n")
    assert "No code was run: earlier code filled work_dir" in done.stderr
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_an_encoding_that_lacks_a_character_ends_nothing(work_dir: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "repl", "--work-dir", str(work_dir)],
        input="print('\\u00e9')\n",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "\\xe9\n"), done.stderr


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
        assert await_input(fd, deadline - time.monotonic()), seen
        seen += os.read(fd, 4096).decode(errors="replace")
    return seen
