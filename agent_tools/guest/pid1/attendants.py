"""Forks of PID 1 that outlive a kernel: they serve its files and names, run its commands and carry its network."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from ..commands import commands
from ..files import files
from ..forks import in_fork, prefer_as_oom_victim, set_dumpable
from ..network import proxy, resolver
from ..processes import kill_subreaper
from ..wire.sockets import pair

MAX_RESOLVERS = 100  # one after the other, each killed by the code


class Attendants:
    """All of them. `let_go` closes, in a fork, what belongs to PID 1 alone."""

    def __init__(self, let_go: Callable[[], None], kill_branch: Callable[[int], bool], work_dir: str) -> None:
        self.pids: set[int] = set()
        self._let_go = let_go
        self._kill_branch = kill_branch
        self._work_dir = work_dir
        self._runs_commands = 0  # the pid of the one that does
        self._ran_commands: set[int] = set()  # the pids of all that did, until their end is noted
        self._commands: socket.socket | None = None  # the line to it
        self._proxy = 0  # the pid of the network's
        self._port: socket.socket | None = None  # on which it listens: PID 1 keeps it, whatever ends the proxy
        self._questions = resolver.listen()  # for names, kept likewise
        self._resolver = 0  # the pid of the one that answers them
        self._resolvers_left = MAX_RESOLVERS

    def serve_files(self, descriptors: list[int]) -> None:
        """Fork a server of files on a socket, or say there that it found no room."""
        if not self._fork(lambda: files.serve(descriptors[0], self._work_dir)):
            _say(descriptors[0], files.NO_ROOM)

    def spawn(self, descriptors: list[int]) -> None:
        """Hand the socket of a command to the process that runs commands, which starts with the first of them."""
        if self._runs_commands not in self.pids or not self._hand_over(descriptors):
            self._start_commands()
            if not self._hand_over(descriptors):
                _say(descriptors[0], commands.NO_ROOM)

    def end_commands(self) -> None:
        """End all commands and all that they started."""
        if self._runs_commands in self.pids:
            self._ran_commands.discard(self._runs_commands)
            if not self._kill_branch(self._runs_commands):
                kill_subreaper(self._runs_commands)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it was one that ran commands and has left them running."""
        self.pids.discard(pid)
        has_left_commands = pid in self._ran_commands
        self._ran_commands.discard(pid)
        return has_left_commands

    def rouse(self) -> None:
        """Let all of them go on, whatever has stopped them."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def serve_network(self, descriptors: list[int]) -> None:
        """Fork the proxy's end in the sandbox, in place of an earlier one."""
        if self._proxy in self.pids:
            os.kill(self._proxy, signal.SIGKILL)
        if self._port is None:
            with contextlib.suppress(OSError):  # the fork will say so, by its end
                self._port = proxy.listen()
        port = self._port.dup() if self._port else None
        self._proxy = self._fork(lambda: proxy.serve(descriptors[0], port or proxy.listen()))
        if port:
            port.close()

    def watched(self) -> list[int]:
        """Return what PID 1 looks at for them: the port for names, while nobody else does."""
        is_wanted = self._resolver not in self.pids and self._resolvers_left > 0
        return [self._questions.fileno()] if self._questions and is_wanted else []

    def serve_names(self, readable: list[int]) -> None:
        """Fork who answers the questions for names, if one has come."""
        port = self._questions
        if port and port.fileno() in readable:
            with port.dup() as kept:
                self._resolver = self._fork(lambda: resolver.serve(kept))
            if self._resolver:
                self._resolvers_left -= 1
            else:
                os.read(port.fileno(), 4096)  # unanswered; who asked may ask again

    def close(self) -> None:
        """Let go of what is PID 1's, in a fork and at the end."""
        for held in (self._commands, self._port, self._questions):
            if held:
                held.close()

    def _hand_over(self, descriptors: list[int]) -> bool:
        """Send a socket; return whether the other end is still there. One that is not taken is closed, so told lost."""
        assert self._commands
        try:
            socket.send_fds(self._commands, [b"\0"], descriptors)
            os.kill(self._runs_commands, signal.SIGCONT)  # code may have stopped it
        except BlockingIOError:
            return True
        except OSError:  # code has killed it, and its end is not noted yet
            return False
        return True

    def _start_commands(self) -> None:
        if self._commands:
            self._commands.close()
        self._commands, theirs = pair(socket.SOCK_SEQPACKET)
        self._commands.setblocking(False)
        with theirs:
            self._runs_commands = self._fork(lambda: self._run_commands(theirs))
        if self._runs_commands:
            self._ran_commands.add(self._runs_commands)

    def _run_commands(self, orders: socket.socket) -> None:
        prefer_as_oom_victim()
        commands.serve(orders, self._work_dir)

    def _fork(self, work: Callable[[], None]) -> int:
        def become() -> None:
            self._let_go()
            set_dumpable(True)  # only PID 1 is hidden: a host that is not root counts what all others hold
            work()

        try:
            pid = os.fork()
        except OSError:  # no room for a process
            return 0
        if pid == 0:
            in_fork(become)
        self.pids.add(pid)
        return pid


def _say(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody hears it
        os.write(descriptor, data)
