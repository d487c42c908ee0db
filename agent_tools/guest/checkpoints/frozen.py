"""The frozen copy of a kernel: releases resources, waits, and forks to continue as the kernel."""

import contextlib
import fcntl
import os
import signal
import socket
import stat
import time
from collections.abc import Collection, Iterator
from typing import NoReturn

from .datagrams import BRANCH, BRANCH_DESCRIPTORS, DESCRIPTORS, MAX_BYTES

PAUSE = 0.0002  # seconds between two looks whether a parent has ended
RETRY_TIMEOUT = 30.0  # seconds that a fork is tried again
Line = tuple[int, socket.socket]
"""The line that a copy waits on: its number at PID 1, and the copy's end."""
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC


class Woken(BaseException):
    """Raised where a copy was taken, in the process that becomes the kernel.

    Attributes:
        descriptors: those of the new kernel (words.py).
        skipped: why no copy was taken since, '' if there was no occasion.
    """

    def __init__(self, descriptors: list[int], skipped: str) -> None:
        super().__init__()
        self.descriptors, self.skipped = descriptors, skipped


class Branched(Woken):
    """Raised where a copy was taken, in the process that becomes the supervisor of a branch (supervisor.py).

    Its `descriptors`: the lifeline of the branch, and a socket on which it says that it is awake.
    """


def freeze(keeper: socket.socket, run: int, waits_on: Line, done: int) -> NoReturn:
    """Become the copy after a run, and wait on a line; `done` is closed once it is ready.

    Raises:
        Woken: in a fork of the copy.
    """
    number, line = waits_on
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        let_go({line.fileno(), keeper.fileno(), done})
        keeper.send(b"copy %d %d" % (run, number), socket.MSG_DONTWAIT)
        keeper.close()
        os.close(done)
        woken = _wait(line)
        line.close()
    except BaseException:  # noqa: BLE001  (the last frame of this process)
        os._exit(1)
    raise woken


def _wait(line: socket.socket) -> Woken:
    """Fork at each message of PID 1, until it closes the socket; return in the forks only."""
    while True:
        word, descriptors, _, _ = socket.recv_fds(line, MAX_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not word:
            os._exit(0)
        if len(descriptors) < (BRANCH_DESCRIPTORS if word == BRANCH else DESCRIPTORS):
            os._exit(1)  # code has taken nearly all numbers: PID 1 reports the end of the copy
        if is_orphaned_fork():
            own_files()
            kind = Branched if word == BRANCH else Woken
            return kind(list(descriptors), word.decode("ascii", "replace").partition(" ")[2])
        for descriptor in descriptors:
            os.close(descriptor)


def is_orphaned_fork() -> bool:
    """Fork into a process of a session of its own, which PID 1 has adopted and will reap; return True there."""
    if child := _patient_fork():
        os.waitpid(child, 0)
        return False
    between = os.getpid()
    if _patient_fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(PAUSE)
    os.setsid()
    return True


def _patient_fork() -> int:
    """Fork; at the sandbox's limit of processes, wait until killed ones are gone."""
    deadline = time.monotonic() + RETRY_TIMEOUT
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            return os.fork()
        time.sleep(PAUSE)
    return os.fork()


def let_go(kept: Collection[int]) -> None:
    """Replace all descriptors shared with the kernel except these; the numbers stay in use.

    A socket or pipe is replaced by one with a closed other end; else the other end would never see its end.
    """
    dead, other = socket.socketpair()
    other.close()
    for descriptor, mode in _descriptors():
        if descriptor not in kept and descriptor != dead.fileno() and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            with contextlib.suppress(OSError):
                os.dup2(dead.fileno(), descriptor, os.get_inheritable(descriptor))
    dead.close()
    own_files()


def own_files() -> None:
    """Reopen all open files at the same position, so that position and locks are not shared with the parent."""
    for descriptor, mode in _descriptors():
        if stat.S_ISREG(mode):
            with contextlib.suppress(OSError):
                _open_anew(descriptor)


def _descriptors() -> Iterator[tuple[int, int]]:
    """Yield the open descriptors with their modes."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield int(name), os.fstat(int(name)).st_mode


def _open_anew(descriptor: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & _KEPT_FLAGS
    fresh = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    try:
        os.lseek(fresh, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(fresh, descriptor, os.get_inheritable(descriptor))
    finally:
        os.close(fresh)
