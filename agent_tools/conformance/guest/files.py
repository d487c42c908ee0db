"""Checks of the files that code can write, make and execute."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
import time
from functools import partial
from typing import Callable

from agent_tools.conformance.guest.answers import held, listed, opened, opens, refusal

USUAL_DEVICES = set("console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero".split())
KERNEL_SETTINGS = "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/overcommit_memory \
/sys/kernel/uevent_helper /sys/power/state /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory/cgroup.procs".split()
MOST_SECONDS = 2.0  # of processor time, of looking through the image: a busy machine is not a large image
SCRATCH = [""]  # the temporary folder; empty where none can be made


def _writes(*folders: str) -> list[str]:
    """Return True if a file can be made in a folder; it is removed at once."""
    found, last = [], held("not there")
    for folder in dict.fromkeys(folders):
        path = os.path.join(folder, ".conformance-" + str(os.getpid()))
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.unlink(path)
            found.append(folder)
        except OSError as exc:
            last = refusal(exc)
    return listed(found, last[1]) if found or last[0] == "held" else last


def _kernel_settings() -> list[str]:
    return listed([path for path in KERNEL_SETTINGS if opens(path, os.O_WRONLY)], "not writable")


def _login() -> list[str]:
    """Try to choose the identity by which the host's audit names this child."""
    with open("/proc/self/loginuid", "r+") as file:
        if file.read().strip() == str(2**32 - 1):
            file.seek(0)
            file.write("1")
            file.flush()
            return opened("any user's")
    return held("set for good")


def _sysrq() -> list[str]:
    return listed(["writable"] if opens("/proc/sysrq-trigger", os.O_WRONLY) else [], "not writable")


def _scratch_file() -> str:
    if not SCRATCH[0]:
        raise RuntimeError("there is no folder to write in")
    path = os.path.join(SCRATCH[0], str(os.getpid()))
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o700))
    return path


def _execute_from_tmp() -> list[str]:
    """Ask by access(2), which answers for a noexec mount without executing anything."""
    return opened("allowed") if os.access(_scratch_file(), os.X_OK) else held("refused (noexec)")


def _set_user_id() -> list[str]:
    path = _scratch_file()
    os.chmod(path, 0o4755)
    return opened("mode 4755 was set") if os.stat(path).st_mode & stat.S_ISUID else held("the bit was dropped")


def _fifo() -> list[str]:
    os.mkfifo(_scratch_file() + ".fifo")
    return opened("made")


def _device_node() -> list[str]:
    os.mknod(_scratch_file() + ".null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    return opened("made")


def _symbolic_link() -> list[str]:
    os.symlink("/etc/passwd", _scratch_file() + ".link")
    return ["info", "can be planted anywhere writable: the host must follow none"]


def _devices() -> list[str]:
    return listed(sorted(set(os.listdir("/dev")) - USUAL_DEVICES), "the usual few")


def _set_user_id_files() -> list[str]:
    end = time.thread_time() + MOST_SECONDS
    found: list[str] = []
    for folder in ("/bin", "/sbin", "/usr", "/opt", "/lib"):
        for path, _, names in os.walk(folder):
            found += [os.path.join(path, name) for name in names if _has_bits(os.path.join(path, name))]
            if time.thread_time() > end:
                return opened(", ".join(found[:5])) if found else ["unknown", "too many files to look at"]
    return listed(found[:5], "none")


def _has_bits(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o6000)


CHECKS: dict[str, Callable[[], list[str]]] = {
    "write_root": partial(_writes, "/"),
    "write_etc": partial(_writes, "/etc"),
    "write_python": partial(_writes, sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))),
    "write_packages": partial(_writes, sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")),
    "write_run": partial(_writes, "/run", "/run/kernel"),
    "kernel_settings": _kernel_settings,
    "login": _login,
    "sysrq": _sysrq,
    "execute_from_tmp": _execute_from_tmp,
    "set_user_id": _set_user_id,
    "set_user_id_files": _set_user_id_files,
    "fifo": _fifo,
    "device_node": _device_node,
    "devices": _devices,
    "symbolic_link": _symbolic_link,
}
