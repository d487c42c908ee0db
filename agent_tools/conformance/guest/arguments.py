"""Tries system calls that are refused only for some arguments, with these and with excess bits that the kernel ignores.

A register has 64 bits, the kernel reads 32 or 16 of most of them: 2**32 + 1 is PID 1. A rule that compares all 64 lets
such a number through.
"""

from __future__ import annotations

import errno
import os
import platform
from typing import Any, Callable, Iterator, NamedTuple

from agent_tools.conformance.guest.answers import call_numbers, listed

try:
    import ctypes
except ImportError:  # not every Python has it
    ctypes = None  # type: ignore[assignment]

NO_FD = 2**64 - 1
MISSING_GROUP = 0x3FFFFF
WRONG_CLASS = 7 << 13  # of input and output: fails even where the call is allowed
NEW_USER, SHARED_FS = 0x10000000, 0x200  # of clone: together they fail
CREATE, TMPFILE = os.O_CREAT | os.O_WRONLY, 0x400000 | os.O_DIRECTORY | os.O_WRONLY
SET_USER_ID, FIFO, CHARACTER_DEVICE = 0o4755, 0o010600, 0o020600
HUGE_MEMFD, HUGE_PRIVATE = 0x4, 0x40022
UNSUPPORTED = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)  # refused as by a file system that has no such thing


class Attempt(NamedTuple):
    """A call that fails even where it is allowed, or is harmless."""

    name: str
    numbers: tuple[int, int]  # on x86_64 and aarch64; -1 where there is no such call
    arguments: tuple[int, ...]
    widths: dict[int, int]  # how many bits the kernel reads of each argument that is looked at
    refusals: tuple[int, ...] = (errno.EPERM, errno.EACCES, errno.ENOSYS)

    def ways(self) -> Iterator[tuple[int, ...]]:
        """Yield the arguments as they are, with one excess bit, and with all excess bits; one by one and together."""
        yield self.arguments
        for places in [*([index] for index in self.widths), list(self.widths)]:
            for high in (_one_too_many, _all_too_many):
                changes = {index: high(self.widths[index]) for index in places}
                yield tuple(word | changes.get(index, 0) for index, word in enumerate(self.arguments))


def _one_too_many(width: int) -> int:
    return 1 << width


def _all_too_many(width: int) -> int:
    return (1 << 64) - (1 << width)


def _of(name: str, numbers: tuple[int, int], widths: dict[int, int], *calls: tuple[int, ...]) -> list[Attempt]:
    return [Attempt(name, numbers, arguments, widths) for arguments in calls]


ATTEMPTS = (
    *_of("clone", (56, 220), {0: 32}, (NEW_USER | SHARED_FS, 0, 0, 0, 0)),
    *_of(
        "socket",
        (41, 198),
        {0: 32, 1: 32, 2: 32},
        (38, 5, 0),  # the kernel's cryptography
        (16, 3, 12),  # netfilter
        (2, 1, 262),  # multipath TCP
        (2, 2, 136),  # UDP-Lite
        (2, 2, 1),  # ping
        (10, 2, 58),
        (2, 1, 132),  # SCTP
        (2, 6, 0),  # DCCP
    ),
    *_of("socketpair", (53, 199), {0: 32}, (2, 1, 0, 0)),
    *_of(
        "setsockopt",
        (54, 208),
        {1: 32, 2: 32},
        (NO_FD, 6, 31, 0, 0),  # TCP_ULP
        (NO_FD, 1, 13, 0, 0),  # SO_LINGER
        (NO_FD, 17, 100, 0, 0),
        (NO_FD, 282, 1, 0, 0),
    ),
    Attempt("sendfile", (40, 71), (NO_FD, NO_FD, 0, 0), {}, (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL)),
    *_of("chmod", (90, -1), {1: 16}, (0, SET_USER_ID)),
    *_of("fchmod", (91, 52), {1: 16}, (NO_FD, SET_USER_ID)),
    *_of("fchmodat", (268, 53), {2: 16}, (NO_FD, 0, SET_USER_ID)),
    *_of("creat", (85, -1), {1: 16}, (0, SET_USER_ID)),
    *_of("open", (2, -1), {1: 32, 2: 16}, (0, CREATE, SET_USER_ID)),
    *_of("openat", (257, 56), {2: 32, 3: 16}, (NO_FD, 0, CREATE, SET_USER_ID)),
    Attempt("open", (2, -1), (0, TMPFILE, 0o600), {1: 32, 2: 16}, UNSUPPORTED),
    Attempt("openat", (257, 56), (NO_FD, 0, TMPFILE, 0o600), {2: 32, 3: 16}, UNSUPPORTED),
    # disk that is taken without writing: reserved, reserved beyond the end, zeroed, zeroed beyond the end
    *(Attempt("fallocate", (285, 47), (NO_FD, mode, 0, 1), {1: 32}, UNSUPPORTED) for mode in (0, 0x01, 0x10, 0x11)),
    *_of("mknod", (133, -1), {1: 16}, (0, FIFO, 0), (0, CHARACTER_DEVICE, 0)),
    *_of("mknodat", (259, 33), {2: 16}, (NO_FD, 0, FIFO, 0), (NO_FD, 0, CHARACTER_DEVICE, 0)),
    *_of("mmap", (9, 222), {3: 32}, (0, 0, 0, HUGE_PRIVATE, NO_FD, 0)),
    *_of("memfd_create", (319, 279), {1: 32}, (0, HUGE_MEMFD)),
    *_of("fcntl", (72, 25), {1: 32}, (NO_FD, 1024, 0), (NO_FD, 1026, 0)),  # leases, and signals for changes
    *_of(
        "ioctl",
        (16, 29),
        {1: 32},
        (NO_FD, 0x5423, 0),  # TIOCSETD: another line discipline
        (NO_FD, 0x5412, 0),  # TIOCSTI: input for a terminal
        (NO_FD, 0x401C5820, 0),  # FS_IOC_FSSETXATTR: another project's quota
        (NO_FD, 0x40086602, 0),  # FS_IOC_SETFLAGS
        (NO_FD, 0x4030582A, 0),  # FS_IOC_RESVSP64: fallocate by another name
    ),
    *_of("prlimit64", (302, 261), {0: 32}, (1, 4, 0, 0)),
    *_of("personality", (135, 92), {0: 32}, (0x0040000,)),
    *_of("ioprio_set", (251, 30), {0: 32, 1: 32}, (1, 1, WRONG_CLASS), (2, MISSING_GROUP, WRONG_CLASS)),
    *_of("sched_setaffinity", (203, 122), {0: 32}, (1, 8, 0)),
    *_of("sched_setparam", (142, 118), {0: 32}, (1, 0)),
    *_of("sched_setscheduler", (144, 119), {0: 32}, (1, 0, 0)),
    *_of("setpriority", (141, 140), {0: 32, 1: 32}, (1, MISSING_GROUP, 0), (2, MISSING_GROUP, 0)),
)


def _forbidden_arguments() -> list[str]:
    column = call_numbers()
    if column is None or ctypes is None:
        return ["unknown", "no way to make system calls on " + platform.machine()]
    libc: Any = ctypes.CDLL(None, use_errno=True)
    attempts = [attempt for attempt in _attempts() if attempt.numbers[column] >= 0]
    reached, tried = [], 0
    for attempt in attempts:
        for words in attempt.ways():
            tried += 1
            number = ctypes.c_long(attempt.numbers[column])
            if libc.syscall(number, *map(ctypes.c_ulong, words)) != -1 or ctypes.get_errno() not in attempt.refusals:
                reached.append(attempt.name)
    names = {attempt.name for attempt in attempts}
    return listed(list(dict.fromkeys(reached)), str(len(names)) + " calls refused in " + str(tried) + " ways")


def _attempts() -> list[Attempt]:
    """Return all attempts, with one that sets the priority of PID 1 to its present value."""
    priority = os.getpriority(os.PRIO_PROCESS, 1) % 2**64
    return [*ATTEMPTS, *_of("setpriority", (141, 140), {0: 32, 1: 32}, (0, 1, priority))]


CHECKS: dict[str, Callable[[], list[str]]] = {"forbidden_arguments": _forbidden_arguments}
