"""Forks of PID 1 that outlive a kernel: the servers of the sandbox's files, and the one that runs its commands."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from . import commands, files
from .forks import in_fork, prefer_as_oom_victim, set_dumpable
from .processes import kill_subreaper


class Attendants:
    """All of them. `let_go` closes, in a fork, what belongs to PID 1 alone."""

    def __init__(self, let_go: Callable[[], None], work_dir: str) -> None:
        self.pids: set[int] = set()
        self._let_go = let_go
        self._work_dir = work_dir
        self._runs_commands = 0  # the pid of the one that does
        self._commands: socket.socket | None = None  # the line to it

    def serve_files(self, descriptors: list[int]) -> None:
        """Fork a server of files on a socket."""
        self._fork(lambda: files.serve(descriptors[0], self._work_dir))

    def spawn(self, descriptors: list[int]) -> None:
        """Hand the socket of a command to the process that runs commands, which starts with the first of them."""
        if self._runs_commands not in self.pids:
            self._start_commands()
        with contextlib.suppress(OSError):  # one that is not handed over is closed, and so told lost
            assert self._commands
            socket.send_fds(self._commands, [b"\0"], descriptors)
            os.kill(self._runs_commands, signal.SIGCONT)  # code may have stopped it

    def end_commands(self) -> None:
        """End all commands and all that they started."""
        if self._runs_commands in self.pids:
            kill_subreaper(self._runs_commands)

    def close(self) -> None:
        """Let go of the line, in a fork and at the end."""
        if self._commands:
            self._commands.close()

    def _start_commands(self) -> None:
        self.close()
        self._commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._commands.setblocking(False)
        with theirs:
            self._runs_commands = self._fork(lambda: self._run_commands(theirs))

    def _run_commands(self, orders: socket.socket) -> None:
        set_dumpable(True)
        prefer_as_oom_victim()
        commands.serve(orders, self._work_dir)

    def _fork(self, work: Callable[[], None]) -> int:
        def become() -> None:
            self._let_go()
            work()

        pid = os.fork()
        if pid == 0:
            in_fork(become)
        self.pids.add(pid)
        return pid
