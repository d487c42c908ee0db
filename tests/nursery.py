"""The process that the sandboxes of `tests.doubles` are forks of: it has imported what a kernel needs, once for all.

Theory of operation
    The imports are nine tenths of what a plain sandbox costs. So a process imports them and waits on a socket. For
    each order, a message of JSON with at most one descriptor, it forks; the fork takes arguments, environment and stdin
    from the order, leads a session of its own, and goes on as `python -m agent_tools.guest` would. The answer is its
    pid with a pidfd, which is readable once the fork has ended. The kernel collects ended forks, since the nursery
    ignores their signal. Modules that read the environment while they are imported are imported anew in the fork, and
    so is whatever imports them.

    Each process that asks has a nursery of its own, which ends when that process does, since its socket closes then.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

if not hasattr(tarfile, "data_filter"):  # a Python older than the guest's, such as Debian 12's
    sys.modules["tarfile"] = importlib.import_module("backports.tarfile")

MOST = 1 << 17  # bytes of an order
PATIENCE = 5.0  # seconds, at the end, for who else has the nursery's socket
READ_THE_ENVIRONMENT = (
    "agent_tools.guest.command_start",
    "agent_tools.guest.pid1.init",
    "agent_tools.guest.kernel.session",
)
"""The modules that do so while they are imported."""


class Newborn:
    """A fork of the nursery, with what subprocess.Popen has for it."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._has_ended = False

    def poll(self) -> int | None:
        """0 once it has ended, in whatever way: the nursery is not told its exit code."""
        if not self._has_ended and select.select([self._pidfd], [], [], 0)[0]:
            self._end()
        return 0 if self._has_ended else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork of the nursery", timeout or 0)
            self._end()
        return 0

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _end(self) -> None:
        self._has_ended = True
        os.close(self._pidfd)


class Nursery:
    """The nursery's end in the process that asks it for sandboxes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=theirs, stdout=subprocess.DEVNULL, start_new_session=True
            )
        atexit.register(self._end, os.getpid())

    @property
    def pid(self) -> int:
        return self._process.pid

    def _end(self, owner: int) -> None:
        """Let it end, and see that, in the process that it is for."""
        if os.getpid() == owner:
            self._line.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], stdio: socket.socket | None) -> Newborn:
        """Start a sandbox's first process; with `stdio` as its stdin and stdout."""
        order = json.dumps([list(arguments), dict(environment)]).encode()
        assert len(order) <= MOST
        with self._lock:
            socket.send_fds(self._line, [order], [stdio.fileno()] if stdio else [])
            answer, (pidfd,), _, _ = socket.recv_fds(self._line, 100, 1)
        return Newborn(int(answer), pidfd)


_nurseries: dict[int, Nursery] = {}
_lock = threading.Lock()


def nursery() -> Nursery:
    """Return this process's nursery; a process that was forked from one that has one makes its own."""
    with _lock:
        return _nurseries.get(os.getpid()) or _nurseries.setdefault(os.getpid(), Nursery())


# -- in the nursery ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Import what can be imported ahead, and fork until nobody asks any more."""
    line = socket.socket(fileno=os.dup(0))
    _import_ahead()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        order, descriptors, _, _ = socket.recv_fds(line, MOST, 1)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            line.close()
            _go_on(*json.loads(order), descriptors)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(line, [str(pid).encode()], [pidfd])
        for descriptor in (pidfd, *descriptors):
            os.close(descriptor)


def _import_ahead() -> None:
    """Import all that a kernel needs, but what has to be imported in the fork."""
    from agent_tools.guest import lazy_modules

    importers: dict[str, set[str]] = {}
    with _noted(importers):
        with lazy_modules.stand_ins():
            from agent_tools.guest import startup as startup
        from agent_tools.guest.checkpoints import hot_pages
        from agent_tools.guest.pid1 import supervisor as supervisor
    hot_pages.MAX_SEARCHED = 0  # copying ahead costs each cell some milliseconds of a core, to make the next quicker
    of_the_shell = ("application", "completerlib", "inputtransformer2", "magics.packaging", "magics.script", "oinspect")
    for name in of_the_shell:
        importlib.import_module(f"IPython.core.{name}")
    list(tokenize.generate_tokens(iter(["0"]).__next__))  # which compiles the patterns of Python's parts
    for name in bound_to_the_environment(importers):
        package, _, module = name.rpartition(".")
        del sys.modules[name]
        delattr(sys.modules[package], module)


def bound_to_the_environment(importers: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that read the environment, with those that import them, and those that import these."""
    found: set[str] = set()
    left = list(READ_THE_ENVIRONMENT)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += importers.get(name, ())
    return found


@contextlib.contextmanager
def _noted(importers: dict[str, set[str]]) -> Iterator[None]:
    """Within it, note who imports each module of the guest; a package counts for none of its modules."""
    import_ = builtins.__import__

    def noting(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
        module = import_(name, globals, locals, fromlist, level)
        importer = (globals or {}).get("__name__", "")
        for imported in (module.__name__, *(f"{module.__name__}.{each}" for each in fromlist or ())):
            if imported.startswith("agent_tools.guest.") and importer.startswith("agent_tools.guest."):
                importers.setdefault(imported, set()).add(importer)
        return module

    builtins.__import__ = noting
    try:
        yield
    finally:
        builtins.__import__ = import_


def _go_on(arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Be a sandbox's first process, as `python -m agent_tools.guest` is."""
    try:
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        ours = descriptors[0] if descriptors else null
        for number, descriptor in enumerate((ours, ours, null)):
            os.dup2(descriptor, number)
        os.closerange(3, max(ours, null) + 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        from agent_tools.guest import processes
        from agent_tools.guest.kernel import shell
        from agent_tools.guest.pid1.supervisor import main as be_pid_1

        processes.adopt_orphans()  # as the first process of a container does
        is_library = shell._is_library
        shell._is_library = lambda name: name == __file__ or is_library(name)  # this frame is below all of the guest's
        be_pid_1()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
