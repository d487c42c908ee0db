"""A program that takes from itself what only Linux has, and runs another: `python -m tests.without_linux FILE ...`.

Python's own modules are loaded before, since those of this platform stand in for those of the other. What the program
asks of the file systems /proc and /sys is not found, and calls that Linux alone has are not there.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import resource
import runpy
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

LOADED_BEFORE = (
    *("asyncio", "ctypes.util", "http.server", "mimetypes", "multiprocessing", "platform", "ssl", "subprocess"),
    *("tempfile", "urllib.request", "uuid", "webbrowser", "anyio._backends._asyncio", "click", "docker"),
    *("docker.transport.unixconn", "h11", "jupyter_client", "pydantic", "requests", "rich.console", "zmq"),
)
LINUX_ALONE: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("memfd_create", "eventfd", "pidfd_open", "pipe2", "splice", "copy_file_range", "posix_fallocate"),
        *("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "getrandom", "unshare", "setns", "fdatasync"),
        *(
            "getxattr",
            "setxattr",
            "listxattr",
            "removexattr",
            "O_PATH",
            "O_TMPFILE",
            "O_DIRECT",
            "O_NOATIME",
            "P_PIDFD",
        ),
    ),
    socket: (
        *("SOCK_SEQPACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "SO_PASSCRED", "SCM_CREDENTIALS"),
        *("MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"),
    ),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    resource: ("prlimit", "RLIMIT_SIGPENDING", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_MSGQUEUE"),
}
GUARDED = (
    (builtins, "open"), (io, "open"), (os, "open"), (os, "listdir"), (os, "scandir"), (os, "readlink"), (os, "stat"),
    (os, "lstat"), (os, "access"), (os, "chmod"),
)  # fmt: skip


def take_away() -> None:
    """Make this process one of a machine without Linux."""
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    for module, names in LINUX_ALONE.items():
        for name in filter(partial(hasattr, module), names):
            delattr(module, name)
    for module, name in GUARDED:
        setattr(module, name, _without_proc(getattr(module, name)))
    sys.platform = "darwin"


def _without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*arguments: Any, **options: Any) -> Any:
        if any(_is_of_linux(each) for each in arguments[:1]):
            raise FileNotFoundError(2, "No such file or directory", arguments[0])
        return call(*arguments, **options)

    return guarded


def _is_of_linux(path: object) -> bool:
    return isinstance(path, (str, os.PathLike)) and Path(os.path.abspath(path)).parts[1:2] in (("proc",), ("sys",))


if __name__ == "__main__":
    take_away()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "agent_tools":
        runpy.run_module("agent_tools", run_name="__main__")
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
