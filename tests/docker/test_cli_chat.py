"""`agent-tools chat` as a person, or a script, uses it: a process of its own, a scripted server, a real sandbox."""

from __future__ import annotations

import os
import platform
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
COMMAND = [sys.executable, "-m", "agent_tools", "chat", "--model", "m"]
_READ = {"x86_64": "0", "aarch64": "63"}  # the number of `read` among the system calls
PATIENCE = 60.0  # seconds: only a failing test waits this long
DRAW = "plt.plot([1])\nplt.show()\nprint(open('data.csv').read())"


def code(text: str) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": text})], piece=5)


def once(server: ScriptedServer, work_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--base-url", server.base_url, "--work-dir", str(work_dir), *arguments]
    environment = {**os.environ, "TEST_KEY": "k3y"}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)


def test_once_prints_the_answer_and_tells_code_output_and_figures_beside_it(work_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("from the file")
    with ScriptedServer({"m": [code(DRAW), "It is drawn.\x1b[2J"]}, api_key="k3y") as server:
        file = str(tmp_path / "data.csv")
        done = once(server, work_dir, "--api-key-env", "TEST_KEY", "--file", file, "--once", "Draw")
    assert (done.returncode, done.stdout) == (0, "It is drawn.\n"), done.stderr
    for part in ("── code_interpreter", "plt.plot([1])\nplt.show()\n", "from the file\n"):
        assert part in done.stderr
    figure = re.search(r"figure: (\S+)", done.stderr)
    assert figure
    assert Path(figure[1]).read_bytes().startswith(b"\x89PNG")
    assert server.requests[0]["messages"][1]["content"] == "(Uploaded [file](data.csv)) Draw"
    assert [path.name for path in work_dir.glob("*.png")] == [Path(figure[1]).name]


def test_once_tells_by_its_exit_code_that_the_model_failed(work_dir: Path) -> None:
    with ScriptedServer({"m": [ScriptedReply(status=400, error="too odd")]}) as server:
        done = once(server, work_dir, "--once", "Hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert "answered 400" in done.stderr
    assert "too odd" in done.stderr


def test_once_by_react(work_dir: Path) -> None:
    replies = ["Go.\nAction: code_interpreter\nAction Input: ```py\nprint(6 * 7)\n```", "Final Answer: 42"]
    with ScriptedServer({"m": replies}) as server:
        done = once(server, work_dir, "--react", "--once", "6 * 7?")
    assert done.returncode == 0
    assert done.stdout == "Thought: Go.\nFinal Answer: 42\n"
    assert "42\n" in done.stderr


def test_a_conversation_where_ctrl_c_stops_the_code_and_a_second_at_the_prompt_leaves(work_dir: Path) -> None:
    script = [
        code("import time\nx = 41\nprint('running', flush=True)\nwhile True: time.sleep(0.1)"),
        code("print(x + 1)"),
        "It is 42.",
    ]
    with ScriptedServer({"m": script}) as server, _terminal(server, work_dir) as (process, master):
        _expect(master, "> ")
        _type(master, "Run for ever")
        _expect(master, "running\r\n")
        process.send_signal(signal.SIGINT)
        _expect(master, "Stopped.")
        _expect(master, "> ")
        _type(master, "What is x + 1?")
        assert "42\r\n" in _expect(master, "It is 42.")
        _expect(master, "> ")
        _press_ctrl_c(process)
        _expect(master, "Ctrl-C again to leave.")
        _expect(master, "> ")
        _press_ctrl_c(process)
        assert process.wait(PATIENCE) == 0
    told = [message["role"] for message in server.requests[1]["messages"]]
    assert told == ["system", "user", "assistant", "tool", "user"]


@contextmanager
def _terminal(server: ScriptedServer, work_dir: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    master, slave = pty.openpty()
    options = ["--base-url", server.base_url, "--work-dir", str(work_dir), "--timeout", "100"]
    command = ["env", "--default-signal=INT", *COMMAND, *options]  # a shell's background jobs inherit it ignored
    environment = {**os.environ, "TERM": "dumb"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _press_ctrl_c(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C once the process reads its terminal: what comes before that, Python only notes."""
    deadline = time.monotonic() + PATIENCE
    while not _reads_stdin(process.pid):
        assert time.monotonic() < deadline, "it does not ask"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def _reads_stdin(pid: int) -> bool:
    """Return whether the main thread waits in `read` of descriptor 0: `fstat` and `ioctl` of it come just before."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[:2] == [_READ[platform.machine()], "0x0"]


def _type(fd: int, line: str) -> None:
    os.write(fd, f"{line}\n".encode())


def _expect(fd: int, text: str) -> str:
    seen = ""
    deadline = time.monotonic() + PATIENCE
    while text not in seen:
        assert time.monotonic() < deadline, seen
        assert select.select([fd], [], [], PATIENCE)[0], seen
        seen += os.read(fd, 1).decode(errors="replace")
    return seen
