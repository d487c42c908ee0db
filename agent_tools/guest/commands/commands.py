"""Runs the commands of the sandbox: one process, forked from PID 1 at the first of them, without a kernel.

PID 1 hands it the socket of each command (wire/commands.py). It is the subreaper of all it started, so that PID 1 can
tell what comes from a command, however it was orphaned, from what comes from the kernel: a kernel that is replaced
takes no command with it. When PID 1 hangs up, all of them are killed.

One thread, which never waits for a command or for the host.
"""

import contextlib
import errno
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from ..processes import adopt_orphans, kill_tree
from ..wire.commands import Ended, write_event
from .command import Command, Watch

NO_ROOM = write_event(Ended("no program", errno.EAGAIN))  # all that a command hears whose server cannot be started


def serve(orders: socket.socket, work_dir: str) -> None:
    """Run the commands whose sockets come by, until PID 1 hangs up."""
    adopt_orphans()
    CommandServer(orders, work_dir).serve()


class CommandServer:
    """All commands of the sandbox. `orders` brings the descriptor of a command's socket with each datagram."""

    def __init__(self, orders: socket.socket, work_dir: str) -> None:
        self.orders = orders
        self.work_dir = work_dir
        self.is_open = True
        self.commands: list[Command] = []
        self.selector = selectors.DefaultSelector()
        self.watch = _Watch(self.selector)
        self.watch.want(orders.fileno(), selectors.EVENT_READ, self.accept)
        self.notice_children()

    def serve(self) -> None:
        """Do what is due, and wait for more, until PID 1 hangs up."""
        while self.is_open:
            for key, events in self.selector.select(self.patience()):
                now = self.selector.get_map().get(key.fd)
                if now and now.data == key.data:  # else it was closed by one before it
                    key.data(key.fd, events)
            self.reap()
            self.ring()
            self.commands = [command for command in self.commands if not command.is_closed]
        for command in self.commands:
            command.kill()

    def notice_children(self) -> None:
        """Wake up whenever a child ends. By a signal, since not every runtime has pidfds."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which PID 1 ignores, and commands would inherit
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.watch.want(reader, selectors.EVENT_READ, lambda descriptor, _events: os.read(descriptor, 4096))

    def patience(self) -> float | None:
        """Seconds until a command's time is up; None if none has a limit."""
        due = [command.alarms[0][0] for command in self.commands if command.alarms]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def accept(self, _descriptor: int, _events: int) -> None:
        """Take over the socket of a command."""
        line, descriptors, _, _ = socket.recv_fds(self.orders, 1, 1, socket.MSG_CMSG_CLOEXEC)
        self.is_open = bool(line)
        for descriptor in descriptors:
            self.commands.append(Command(socket.socket(fileno=descriptor), self.watch, self.work_dir))

    def ring(self) -> None:
        """End what is over its time."""
        for command in self.commands:
            command.ring(time.monotonic())

    def reap(self) -> None:
        """Collect ended children. One that was ended at its limit takes its session with it, before its pid is free."""
        while (ended := _ended_child()) is not None:
            command = next((each for each in self.commands if each.pid == ended), None)
            if command and command.timed_out:
                kill_tree(ended, command.family)
            _, status = os.waitpid(ended, 0)
            if command:
                command.end(status)


class _Watch(Watch):
    """Descriptors with what is done when they are ready."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector

    def want(self, descriptor: int, events: int, then: Callable[[int, int], object]) -> None:
        try:
            key = self._selector.get_key(descriptor)
        except KeyError:
            if events:
                self._selector.register(descriptor, events, then)
            return
        if not events:
            self._selector.unregister(descriptor)
        elif key.events != events or key.data != then:
            self._selector.modify(descriptor, events, then)


def _ended_child() -> int | None:
    """The pid of a child that has ended, and stays a zombie for now."""
    with contextlib.suppress(ChildProcessError):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found.si_pid if found else None
    return None
