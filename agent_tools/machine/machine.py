"""Identity of this boot and of processes, memory and file times: from /proc on Linux, `ps` and `sysctl` elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

IS_LINUX: bool = sys.platform == "linux"
ASK_SECONDS = 5.0  # seconds that `ps` and `sysctl` may take
_STATX_BYTES, _NO_FOLLOW, _BIRTH = 256, 0x100, 0x800  # of struct statx; AT_SYMLINK_NOFOLLOW, STATX_BTIME


@lru_cache(maxsize=1)
def machine_id() -> str:
    """Return an id of this boot of this machine and of the PID namespace; '' if it is not known."""
    if not IS_LINUX:
        return _asked("sysctl", "-n", "kern.bootsessionuuid")
    boot_id = read_text("/proc/sys/kernel/random/boot_id").strip()
    with contextlib.suppress(OSError):
        return f"{boot_id}/{os.readlink('/proc/self/ns/pid')}"
    return boot_id


def start_time(pid: int) -> int | None:
    """Return the start of a process: clock ticks since boot, or seconds since the epoch. None if there is none."""
    if not IS_LINUX:
        return _time_of(_asked("ps", "-o", "lstart=", "-p", str(pid)))
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the start is field 22
    return int(fields[19]) if len(fields) > 19 else None


def is_zombie(pid: int) -> bool:
    """Return whether a process is a zombie with all its threads: it holds no resources and waits for its parent."""
    state = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1]
    return state == ["Z"] and len(list(Path(f"/proc/{pid}/task").glob("*"))) <= 1


def available_memory() -> int | None:
    """Return the bytes of memory that programs can still allocate without swapping; None if not known."""
    for line in read_text("/proc/meminfo").splitlines():
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return int(size.split()[0]) * 1024
    return None


def birth_time(fd: int, name: str, facts: os.stat_result) -> int | None:
    """Return the creation time of a file in an open folder, in ns; None if the file system does not store it.

    `facts` is the file's lstat result. On Linux it is read by statx(2), whose manual page has the structure.
    """
    if not IS_LINUX:
        made: float | None = getattr(facts, "st_birthtime", None)
        return None if made is None else int(made * 1e9) + 1_000  # a float, which is about as exact as the number
    statx = _statx()
    answer = bytearray(_STATX_BYTES)
    if statx is None or not statx(fd, os.fsencode(name), answer):
        return None
    mask, seconds, nanoseconds = struct.unpack_from("=I76xqI", answer)
    return int(seconds * 10**9 + nanoseconds) if mask & _BIRTH else None


@lru_cache(maxsize=1)
def _statx() -> Callable[[int, bytes, bytearray], bool] | None:
    """Return the C function of this name, which fills a buffer; None if the C library does not have it."""
    call = getattr(ctypes.CDLL(None), "statx", None)
    buffer = ctypes.c_char * _STATX_BYTES
    return call and (lambda fd, name, into: call(fd, name, _NO_FOLLOW, _BIRTH, buffer.from_buffer(into)) == 0)


def _time_of(words: str) -> int | None:
    """Read a time as `ps` prints it in the C locale."""
    try:
        return int(time.mktime(time.strptime(words, "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None


def _asked(*command: str) -> str:
    """Return the output of a program in the C locale; '' if it fails or does not exist."""
    command = ("env", "LC_ALL=C", *command)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def read_text(path: str | Path) -> str:
    """Return a file of /proc, /sys or /run as text; '' if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
