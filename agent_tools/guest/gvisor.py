"""The sandbox's kernel, if it is gVisor's."""

import ctypes
import errno
import os
import platform
import struct

GVISOR = "proc/sentry-meminfo"
FALLOCATE = {"x86_64": 285, "aarch64": 47}  # the number of the system call
ON_A_PROCESS = {"x86_64": (62, 200, 234, 129, 297, 302), "aarch64": (129, 130, 131, 138, 240, 261)}
"""kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo and prlimit64, whose first argument is a process."""
ON_A_PIDFD = (424, 438)
"""pidfd_send_signal and pidfd_getfd, which newer releases of gVisor have: the descriptor may be of PID 1."""
FCNTL, IOCTL = {"x86_64": 72, "aarch64": 25}, {"x86_64": 16, "aarch64": 29}
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 15, 0x8901, 0x8902  # name a process that gets signals of a file
PR_SET_SECCOMP, MODE_FILTER = 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of BPF
NUMBER, ARGUMENTS = 0, 16  # bytes before them in what is loaded; of an argument, the low half. Format: seccomp(2)
ALLOW, FAIL, REFUSE = 0x7FFF0000, 0x00050000 | errno.EOPNOTSUPP, 0x00050000 | errno.EPERM


def is_gvisor(root: str = "/") -> bool:
    """Return whether the kernel is gVisor's."""
    return os.path.exists(f"{root}{GVISOR}")


def forbid_calls() -> None:
    """Let calls fail in this process and its descendants: `fallocate`, signals to PID 1 or limits of it, use of pidfds.

    gVisor does not apply the engine's seccomp profile, but it applies a filter of a process's own, seccomp(2). To it,
    PID 1 is a process like any other.

    Raises:
        OSError: the process may not have a filter: it has neither `no_new_privs` nor the capability.
    """
    machine = platform.machine()
    program = [(LOAD, 0, 0, NUMBER), (JUMP_IF_EQUAL, 0, 1, FALLOCATE[machine]), (RETURN, 0, 0, FAIL)]
    for number in ON_A_PIDFD:
        program += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for number in ON_A_PROCESS[machine]:
        program += _refused(number, 0, 1)
    program += _refused(FCNTL[machine], 1, F_SETOWN, F_SETOWN_EX)
    program += _refused(IOCTL[machine], 1, FIOSETOWN, SIOCSPGRP)
    program.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, struct.pack("HP", len(program), ctypes.addressof(code)), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls can be set")


def _refused(number: int, argument: int, *values: int) -> "list[tuple[int, int, int, int]]":
    """Return the instructions that refuse the call `number` where an argument has one of these values."""
    most = len(values)
    return [
        (JUMP_IF_EQUAL, 0, most + 3, number),
        (LOAD, 0, 0, ARGUMENTS + 8 * argument),
        *((JUMP_IF_EQUAL, most - place, 0, value) for place, value in enumerate(values)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
