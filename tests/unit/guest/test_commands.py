"""The process that runs commands, without a sandbox: terminals, and the ends of commands."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_tools.guest.commands import CommandServer, serve
from agent_tools.guest.wire.commands import Spec
from agent_tools.guest.wire.sockets import await_any
from agent_tools.runtime.commands.process import Process

SECONDS = 60.0  # only a failing test waits this long
Run = Callable[..., Process]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a command on a terminal to its end."""
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = os.fork()
    if server == 0:
        try:
            orders.close()
            serve(theirs, str(tmp_path))
        finally:
            os._exit(0)
    theirs.close()

    def run(command: str, stdin: bytes, *, after: bytes = b"") -> Process:
        """Send input once the command has printed `after`."""
        ours, link = socket.socketpair()
        with link:
            socket.send_fds(orders, [b"\0"], [link.fileno()])
        process = Process(ours, Spec(command, "", {}, SECONDS, 1.0, has_stdin=True, terminal=(24, 80)), 1_000)
        is_written = False
        while not process.is_over:
            if not is_written and after in process.result().stdout:
                is_written = True
                process.write_stdin(stdin)
                process.close_stdin()
            here = [process.fileno()]
            if not await_any(here, here if process.has_more_to_say else [], SECONDS):
                process.kill()
            process.advance()
        return process

    yield run
    orders.close()
    os.waitpid(server, 0)


def test_a_terminal_takes_more_input_than_its_buffers_hold(run: Run) -> None:
    lines = b"".join(b"%099d\n" % number for number in range(2_000))
    done = run("stty -echo; echo ready; read first; wc -c", lines, after=b"ready")
    assert (done.poll(), done.result().stdout.split()) == (0, [b"ready", b"199900"])


@pytest.mark.parametrize("text", [b"", b"abc\n", b"abc"], ids=["nothing", "a line", "a line without its end"])
def test_the_end_of_a_terminal_s_input_ends_it_for_its_reader(run: Run, text: bytes) -> None:
    done = run("stty -echo; echo ready; cat; echo over", text, after=b"ready")
    assert (done.poll(), done.result().stdout.replace(b"\r\n", b"\n")) == (0, b"ready\n" + text + b"over\n")


def test_the_end_of_a_process_is_not_that_of_an_earlier_one_with_its_pid() -> None:
    ended: list[str] = []

    def command(name: str, pid: int, *, is_running: bool) -> Any:
        end = lambda _status: ended.append(name)  # noqa: E731
        return SimpleNamespace(pid=pid, is_running=is_running, timed_out=False, end=end)

    tester = os.fork()  # a server has handlers of signals, and reaps all children
    if tester == 0:
        try:
            server = CommandServer(socket.socketpair()[0], "/")
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            server.commands = cast(
                "Any", [command("earlier", pid, is_running=False), command("this", pid, is_running=True)]
            )
            server.reap()
        finally:
            os._exit(0 if ended == ["this"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(tester, 0)[1]) == 0
