"""The sandbox's kernel, if it is gVisor's."""

import ctypes
import errno
import os
import platform
import struct

GVISOR = "proc/sentry-meminfo"
FALLOCATE = {"x86_64": 285, "aarch64": 47}  # the number of the system call
PR_SET_SECCOMP, MODE_FILTER = 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of BPF; the number of the call is the first word to load
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.EOPNOTSUPP


def is_gvisor(root: str = "/") -> bool:
    """Return whether the kernel is gVisor's."""
    return os.path.exists(f"{root}{GVISOR}")


def forbid_allocation() -> None:
    """Let `fallocate` fail in this process and all that come from it, as if the file system had none.

    gVisor does not apply the engine's seccomp profile, but it applies a filter of a process's own, seccomp(2).

    Raises:
        OSError: the process may not have a filter: it has neither `no_new_privs` nor the capability.
    """
    number = FALLOCATE[platform.machine()]
    program = ((LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL), (RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, struct.pack("HP", len(program), ctypes.addressof(code)), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls can be set")
