"""Checks of the users, system calls and limits that code can take for itself."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from typing import Any, Callable

from agent_tools.conformance.guest.answers import call_numbers, held, listed, opened, read

try:
    import ctypes
except ImportError:  # not every Python has it
    ctypes = None  # type: ignore[assignment]

ESCALATING = ("sudo", "su", "doas", "pkexec", "passwd", "newgrp", "mount")
PIPS = ("pip", "pip3")
INSTALLING = (*PIPS, "conda", "uv", "gcc", "cc", "clang", "make", "git", "curl", "wget")

X32_GETPID = 0x40000000 + 39
GETPID_OF_I386 = bytes.fromhex("b814000000cd80c3")  # mov eax, 20; int 0x80; ret

# name: number on x86_64, number on aarch64, arguments. They fail even where the call is allowed, or are harmless.
SYSCALLS = {
    "unshare": (272, 97, (0x10000000,)),  # a new user namespace
    "setns": (308, 268, (-1, 0)),
    "mount": (165, 40, (b"none", b"/proc", b"nosuchfs", 0, 0)),
    "fsopen": (430, 430, (b"nosuchfs", 0)),
    "pivot_root": (155, 41, (0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "keyctl": (250, 219, (0, -3, 0)),  # which session keyring?
    "userfaultfd": (323, 282, (0,)),
    "io_uring_setup": (425, 425, (1, 0)),
    "ptrace": (101, 117, (16, 0, 0, 0)),  # attach to no process
    "process_vm_readv": (310, 270, (os.getpid(), 0, 0, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "finit_module": (313, 273, (-1, b"", 0)),
    "personality": (135, 92, (0x0040000,)),  # no address randomisation
    "sethostname": (170, 161, (b"x", -1)),
    "syncfs": (306, 267, (-1,)),
    "kernel_log": (103, 116, (10, 0, 0)),  # the size of the log
}


def _system_call(name: str) -> list[str]:
    column = call_numbers()
    if column is None or ctypes is None:
        return ["unknown", "no way to make system calls on " + platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    numbers_and_arguments: Any = SYSCALLS[name]
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in numbers_and_arguments[2]]
    if libc.syscall(ctypes.c_long(numbers_and_arguments[column]), *words) != -1:
        return opened("allowed")
    number = ctypes.get_errno()
    word = errno.errorcode.get(number, str(number))
    if number in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return held(("not available (" if number == errno.ENOSYS else "refused (") + word + ")")
    return opened("reached the kernel (" + word + ")")


def _signals(kill: Callable[[int, int], None] = os.kill) -> list[str]:
    """Send a signal to a child: where that is refused, nothing that hangs in the container can be stopped."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        kill(pid, signal.SIGCONT)
    except PermissionError:
        return opened("refused, as by AppArmor's profile for crun")
    finally:
        os.waitpid(pid, 0)
    return held("arrive")


def _foreign_calls() -> list[str]:
    """Make system calls by the numbers of other ABIs, in a process of its own, which such a call may end."""
    if platform.machine() != "x86_64" or ctypes is None:
        return ["unknown", "no other ABI is known on " + platform.machine()]
    reached = [name for name, call in (("x32", _call_as_x32), ("i386", _call_as_i386)) if not _is_refused(call)]
    return listed(reached, "x32 and i386 refused")


def _is_refused(call: Callable[[], int]) -> bool:
    """Return whether a call ends its process, or fails as one that is refused or not there. `call` gives -errno."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if -call() in (errno.EPERM, errno.EACCES, errno.ENOSYS) else 1)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0


def _call_as_x32() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.syscall(ctypes.c_long(X32_GETPID))
    return -ctypes.get_errno() if found == -1 else found


def _call_as_i386() -> int:
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(GETPID_OF_I386)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    return int(function())


def _become_root() -> list[str]:
    if 0 in (os.getuid(), os.geteuid()):
        return opened("it is root already") if not _is_mapped() else held("uid 0 is an ordinary user outside")
    os.setuid(0)
    return opened("allowed")


def _is_mapped() -> bool:
    """Return True if uid 0 of this user namespace is another uid of its parent."""
    return any(line.split()[:1] == ["0"] and line.split()[1] != "0" for line in read("/proc/self/uid_map").splitlines())


def _change_root() -> list[str]:
    os.chroot("/")
    return opened("allowed")


def _touch_init() -> list[str]:
    """Set the priority and limits that PID 1 already has."""
    return _allowed(
        {
            "priority": lambda: os.setpriority(os.PRIO_PROCESS, 1, os.getpriority(os.PRIO_PROCESS, 1)),
            "limits": lambda: resource.prlimit(1, resource.RLIMIT_CORE),
        }
    )


def _allowed(attempts: dict[str, Callable[[], object]]) -> list[str]:
    """List the attempts that the operating system does not refuse."""
    found = []
    for word, attempt in attempts.items():
        with contextlib.suppress(OSError):
            attempt()
            found.append(word)
    return listed(found, "refused")


def _programs(*names: str) -> list[str]:
    return listed([name for name in names if _where(name)], "none")


def _where(name: str) -> "str | None":
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")


def _installing_programs() -> list[str]:
    """Look for programs that install or compile. A pip that tells no version is none: it says what to do instead."""
    found = [name for name in INSTALLING if (path := _where(name)) and (name not in PIPS or _has_version(path))]
    if not set(PIPS) & set(found) and _has_version(sys.executable, "-m", "pip"):
        found.append("pip (module)")
    return listed(found, "none")


def _has_version(*command: str) -> bool:
    return subprocess.run([*command, "--version"], capture_output=True).returncode == 0


def _raise_limits() -> list[str]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
    except (ValueError, OSError):
        return held("refused")
    return opened("its hard limit was raised")


def _favour_itself() -> list[str]:
    return _allowed(
        {
            "nice": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
            "real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        }
    )


def _spare_itself() -> list[str]:
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("-1000")
    return opened("it escapes the OOM killer")


CHECKS: dict[str, Callable[[], list[str]]] = {
    **{name: partial(_system_call, name) for name in SYSCALLS},
    "foreign_calls": _foreign_calls,
    "signals": _signals,
    "become_root": _become_root,
    "change_root": _change_root,
    "touch_init": _touch_init,
    "escalating_programs": partial(_programs, *ESCALATING),
    "installing_programs": _installing_programs,
    "raise_limits": _raise_limits,
    "favour_itself": _favour_itself,
    "spare_itself": _spare_itself,
}
