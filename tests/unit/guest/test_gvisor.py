"""What the sandbox does by itself where its kernel is gVisor's."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Callable
from pathlib import Path

from agent_tools.guest.gvisor import F_SETOWN_EX, FIOSETOWN, SIOCSPGRP, forbid_calls

PR_SET_NO_NEW_PRIVS = 38
PIDFD_SEND_SIGNAL, PIDFD_GETFD = 424, 438


def _filtered(work: Callable[[ctypes.CDLL], bool]) -> bool:
    """Return what `work` returns in a process with the filter, by libc."""
    pid = os.fork()
    if pid == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            forbid_calls()
            os._exit(int(not work(libc)))
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_file_is_allocated_and_what_asks_for_it_writes_instead(tmp_path: Path) -> None:
    def work(libc: ctypes.CDLL) -> bool:
        with open(tmp_path / "file", "wb") as file:
            refused = libc.fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(1)) == -1
            code = ctypes.get_errno()
            os.posix_fallocate(file.fileno(), 0, 4096)
        return refused and code == errno.EOPNOTSUPP

    assert _filtered(work)
    assert (tmp_path / "file").stat().st_size == 4096


def test_pid_1_gets_no_signal_and_no_limit_and_others_do() -> None:
    def work(libc: ctypes.CDLL) -> bool:
        nothing = ctypes.create_string_buffer(128)
        for call, *words in (
            (libc.kill, 1, 0),
            (libc.tgkill, 1, 1, 0),
            (libc.sigqueue, 1, 0, None),
            (libc.prlimit, 1, resource.RLIMIT_CPU, None, nothing),
            (libc.fcntl, 0, fcntl.F_SETOWN, 1),
            (libc.fcntl, 0, F_SETOWN_EX, nothing),
            (libc.ioctl, 0, FIOSETOWN, nothing),
            (libc.ioctl, 0, SIOCSPGRP, nothing),
            (libc.syscall, PIDFD_SEND_SIGNAL, -1, 0, None, 0),
            (libc.syscall, PIDFD_GETFD, -1, 0, 0),
        ):
            if call(*words) != -1 or ctypes.get_errno() != errno.EPERM:
                return False
        os.kill(os.getpid(), 0)
        fcntl.fcntl(0, fcntl.F_GETFL)
        return resource.prlimit(0, resource.RLIMIT_CPU) == resource.prlimit(os.getpid(), resource.RLIMIT_CPU)

    assert _filtered(work)
