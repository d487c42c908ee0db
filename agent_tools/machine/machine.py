"""Identity of this boot and of processes, memory and file times: from /proc on Linux, `ps` and `sysctl` elsewhere."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import idna

# Network addresses: resolves names, and tells whether an address is on the public internet.

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # all allocated IPv6 addresses
# Blocks that some versions of Python treat as global, although the registries say that they are special or unused:
# https://www.iana.org/assignments/iana-ipv4-special-registry/ and iana-ipv6-special-registry/.
_SPECIAL = tuple(
    ipaddress.ip_network(block)
    for block in (
        "192.0.0.0/24",  # protocol assignments
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.175.48.0/24",  # AS112
        "2001::/23",  # protocol assignments; Teredo is looked through
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a name, in the system's order, each once.

    Raises:
        OSError: it has none.
        UnicodeError: the name is malformed.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def checked_addresses(
    host: str, port: int, may_be: Callable[[str], bool], look_up: Callable[[str, int], list[str]] = addresses_of
) -> list[str]:
    """Look a name up and return its addresses. Connect to one of these: a second lookup might answer differently.

    Raises:
        LookupError: it has none.
        PermissionError: one of them is not allowed by `may_be`.
    """
    try:
        found = look_up(host, port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise LookupError(host)
    if not all(map(may_be, found)):
        raise PermissionError(host)
    return found


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet. IPv4 addresses embedded in IPv6 ones are checked, too."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in block for block in _SPECIAL)


def ascii_name(host: str) -> str:
    """Return a host name in the form for lookups: IDNA 2008 with UTS 46's mapping, as in browsers, curl and requests.

    Python's own codec is IDNA 2003, by which `straße.de` is `strasse.de`, the name of another owner. ASCII names, and
    names without such a form, are returned unchanged.
    """
    try:
        return host if host.isascii() else idna.encode(host, uts46=True).decode("ascii")
    except UnicodeError:
        return host


IS_LINUX: bool = sys.platform == "linux"
ASK_SECONDS = 5.0  # seconds that `ps` and `sysctl` may take
_STATX_BYTES, _NO_FOLLOW, _BIRTH = 256, 0x100, 0x800  # of struct statx; AT_SYMLINK_NOFOLLOW, STATX_BTIME


@lru_cache(maxsize=1)
def machine_id() -> str:
    """Return an id of this boot of this machine and of the PID namespace; '' if it is not known."""
    if not IS_LINUX:
        return _asked("sysctl", "-n", "kern.bootsessionuuid")
    boot_id = _read("/proc/sys/kernel/random/boot_id").strip()
    with contextlib.suppress(OSError):
        return f"{boot_id}/{os.readlink('/proc/self/ns/pid')}"
    return boot_id


def start_time(pid: int) -> int | None:
    """Return the start of a process: clock ticks since boot, or seconds since the epoch. None if there is none."""
    if not IS_LINUX:
        return _time_of(_asked("ps", "-o", "lstart=", "-p", str(pid)))
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the start is field 22
    return int(fields[19]) if len(fields) > 19 else None


def is_zombie(pid: int) -> bool:
    """Return whether a process is a zombie with all its threads: it holds no resources and waits for its parent."""
    state = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1]
    return state == ["Z"] and len(list(Path(f"/proc/{pid}/task").glob("*"))) <= 1


def available_memory() -> int | None:
    """Return the bytes of memory that programs can still allocate without swapping; None if not known."""
    for line in _read("/proc/meminfo").splitlines():
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
    import ctypes  # imported only if files have changed

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


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


# Raises the limit on open descriptors of this process, which many sandboxes need.
#
# A sandbox holds three to seven descriptors here, and many systems begin a process with a soft limit of 1,024, for the
# sake of programs that use select(2): this one does not. What this process starts inherits the limit.


MOST_DESCRIPTORS = 65_536  # the most to ask for: enough for some 8,000 sandboxes


def raise_limit() -> None:
    """Raise the soft limit to the hard one, but not beyond MOST_DESCRIPTORS; a higher one stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # raising may be forbidden: then fewer sandboxes fit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
