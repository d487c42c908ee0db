"""Forks of PID 1 that outlive a kernel: servers of files, names, commands and the network; supervisors of branches."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from .. import commands, proxy, resolver
from ..checkpoints import oom_priority
from ..files import service
from ..forks import in_fork, set_dumpable, yield_to_pid_1
from ..processes import kill_subreaper
from ..wire.sockets import pair

MAX_RESOLVERS = 100  # one after the other, each killed by the code


class HelperProcesses:
    """The servers of one sandbox. `let_go` closes, in a fork, what belongs to PID 1 alone."""

    def __init__(self, let_go: Callable[[], None], kill_branch: Callable[[int], bool], work_dir: str) -> None:
        self.pids: set[int] = set()
        self._let_go = let_go
        self._kill_branch = kill_branch
        self._work_dir = work_dir
        self._runs_commands = 0  # pid
        self._ran_commands: set[int] = set()  # pids of all that ran commands, until their end is noted
        self._commands: socket.socket | None = None  # the line to it
        self._proxy = 0  # pid
        self._port: socket.socket | None = None  # on which the proxy listens; PID 1 keeps it when a proxy ends
        self._questions = resolver.listen()  # for names, kept as well
        self._resolver = 0  # pid
        self._resolvers_left = MAX_RESOLVERS

    def serve_files(self, descriptors: list[int]) -> None:
        """Fork a server of files on a socket, or answer there that there is no room for a process."""
        if not self._fork(lambda: service.serve(descriptors[0], self._work_dir)):
            _say(descriptors[0], service.NO_ROOM)

    def spawn(self, descriptors: list[int]) -> None:
        """Send the socket of a command to the process that runs commands, which starts with the first command."""
        if self._runs_commands not in self.pids or not self._hand_over(descriptors):
            with contextlib.suppress(OSError):  # without room for a line there is none for a process
                self._start_commands()
            if not self._hand_over(descriptors):
                _say(descriptors[0], commands.NO_ROOM)

    def end_commands(self) -> None:
        """Kill all commands and their descendants."""
        if self._runs_commands in self.pids:
            self._ran_commands.discard(self._runs_commands)
            if not self._kill_branch(self._runs_commands):
                kill_subreaper(self._runs_commands)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it ran commands and has left them running."""
        self.pids.discard(pid)
        has_left_commands = pid in self._ran_commands
        self._ran_commands.discard(pid)
        return has_left_commands

    def rouse(self) -> None:
        """Continue all of them: code may have stopped them."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def serve_network(self, descriptors: list[int]) -> None:
        """Fork the proxy, in place of an earlier one."""
        if self._proxy in self.pids:
            os.kill(self._proxy, signal.SIGKILL)
        if self._port is None:
            with contextlib.suppress(OSError):  # the fork will fail as well, and the host sees its end
                self._port = proxy.listen()
        self._proxy = self._fork(lambda port=None: proxy.serve(descriptors[0], port or proxy.listen()), self._port)

    def watched(self) -> list[int]:
        """Return the descriptors that PID 1 watches for them: the port for names, while no resolver runs."""
        is_wanted = self._resolver not in self.pids and self._resolvers_left > 0
        return [self._questions.fileno()] if self._questions and is_wanted else []

    def serve_names(self, ready: set[int]) -> None:
        """Fork a resolver, if a question for a name has come."""
        port = self._questions
        if port and port.fileno() in ready:
            self._resolver = self._fork(resolver.serve, port)
            if self._resolver:
                self._resolvers_left -= 1
            else:
                os.read(port.fileno(), 4096)  # unanswered; a client asks again

    def close(self) -> None:
        """Close the descriptors of PID 1, in a fork and at the end."""
        for held in (self._commands, self._port, self._questions):
            if held:
                held.close()

    def _hand_over(self, descriptors: list[int]) -> bool:
        """Send a socket; return whether the other end is still there. A socket that is not taken is closed."""
        if self._commands is None:
            return False
        try:
            socket.send_fds(self._commands, [b"\0"], descriptors)
            os.kill(self._runs_commands, signal.SIGCONT)  # code may have stopped it
        except BlockingIOError:
            return True
        except OSError:  # code has killed the process, and its end is not noted yet
            return False
        return True

    def _start_commands(self) -> None:
        if self._commands:
            self._commands.close()
            self._commands = None
        self._commands, theirs = pair(socket.SOCK_SEQPACKET)
        self._commands.setblocking(False)
        with theirs:
            self._runs_commands = self._fork(lambda: self._run_commands(theirs))
        if self._runs_commands:
            self._ran_commands.add(self._runs_commands)

    def _run_commands(self, orders: socket.socket) -> None:
        yield_to_pid_1()
        oom_priority.rank("self", oom_priority.KERNEL)
        commands.serve(orders, self._work_dir)

    def _fork(self, work: Callable[..., None], port: "socket.socket | None" = None) -> int:
        def become() -> None:
            kept = [port.dup()] if port else []
            self._let_go()
            set_dumpable(True)  # only PID 1 is hidden: a host without root counts the open files of all others
            work(*kept)

        try:
            pid = os.fork()
        except OSError:  # there is no room for a process
            return 0
        if pid == 0:
            in_fork(become)
        self.pids.add(pid)
        return pid


def _say(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the host has hung up
        os.write(descriptor, data)
