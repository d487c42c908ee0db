"""The frozen copy of a kernel: what it lets go of, how it waits, and how a fork of it goes on as the kernel."""

import contextlib
import fcntl
import os
import signal
import socket
import stat
import time
from collections.abc import Collection
from typing import NoReturn

from .words import MAX_BYTES, SOCKETS

PAUSE = 0.0002  # seconds between two looks whether a parent has ended
PATIENCE = 30.0  # seconds that a fork is tried again
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC


class Woken(BaseException):
    """Raised where a copy was taken, in the process that is to be the kernel now.

    Attributes:
        descriptors: the sockets of the new kernel: messages, host calls, words to PID 1.
        skipped: why no copy was taken since, '' if there was no occasion.
    """

    def __init__(self, descriptors: list[int], skipped: str) -> None:
        super().__init__()
        self.descriptors, self.skipped = descriptors, skipped


def freeze(keeper: socket.socket, run: int, done: int) -> NoReturn:
    """Be the copy that was left after a run; `done` is closed once it is ready.

    Raises:
        Woken: in a fork of the copy.
    """
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        let_go({line.fileno(), theirs.fileno(), keeper.fileno(), done})
        socket.send_fds(keeper, [b"copy %d" % run], [theirs.fileno()], socket.MSG_DONTWAIT)
        theirs.close()
        keeper.close()
        os.close(done)
        woken = _wait(line)
        line.close()
    except BaseException:  # noqa: BLE001  (the last frame of this process)
        os._exit(1)
    raise woken


def _wait(line: socket.socket) -> Woken:
    """Fork at each word of PID 1, until it hangs up; return in the forks only."""
    while True:
        word, descriptors, _, _ = socket.recv_fds(line, MAX_BYTES, SOCKETS, socket.MSG_CMSG_CLOEXEC)
        if not word:
            os._exit(0)
        if is_orphaned_fork():
            return Woken(list(descriptors), word.decode("ascii", "replace").partition(" ")[2])
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
    """Fork; while the sandbox has all the processes it may have, wait for killed ones to be gone."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            return os.fork()
        time.sleep(PAUSE)
    return os.fork()


def let_go(kept: Collection[int]) -> None:
    """Share no descriptor with the kernel but these: its numbers stay taken, so that nothing else comes under them.

    A socket or pipe becomes one whose other end is closed, or the other end would never hear of its end. A file is
    opened anew at the same place, so that place and locks are this process's own.
    """
    dead, other = socket.socketpair()
    other.close()
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor in kept or descriptor == dead.fileno():
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.dup2(dead.fileno(), descriptor, os.get_inheritable(descriptor))
            elif stat.S_ISREG(mode):
                _open_anew(descriptor)
    dead.close()


def _open_anew(descriptor: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & _KEPT_FLAGS
    fresh = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    try:
        os.lseek(fresh, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(fresh, descriptor, os.get_inheritable(descriptor))
    finally:
        os.close(fresh)
