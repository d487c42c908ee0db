"""The processes that hold kernels: PID 1 of the sandbox, and the supervisor of each branch.

Theory of operation
    A branch goes on from a copy of the kernel, beside the kernel, with its own variables. A fork of the copy becomes
    its supervisor: it does for the branch what PID 1 does for the sandbox, by the same code and in the same words,
    which come over one socket as they would over stdio. Its kernels are forks of it, so each begins with the state of
    the copy. It adopts what comes from them, so all of it can be told from the rest of the sandbox, and ended.

    It has the user of the code, which can end it or stop it, and so ends its own branch: the host hears nothing of it
    any more, and PID 1 ends what is left.
"""

import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from .. import processes
from ..boot import boot as boot
from ..checkpoints.victims import prefer_others
from ..checkpoints.words import AWAKE
from ..forks import may_signal, set_dumpable
from . import hold
from .init import RUN_DIR, WORK_DIR, Init, RunKernel
from .lifeline import SocketLifeline, StdioLifeline, take_stdio
from .names import lay_names
from .reach import Everyone, Offspring

GoOn = Callable[[list[int]], None]
"""Goes on as the kernel, on the descriptors of its sockets, until the host hangs up."""


NO_SIGNALS = """AppArmor lets no process of this container signal another, so nothing in it could be stopped.
Debian's profile for crun does this. On the engine's machine, as root, turn it off:
ln -s /etc/apparmor.d/crun /etc/apparmor.d/disable/ && apparmor_parser -R /etc/apparmor.d/crun"""


def main(may_signal: Callable[[], bool] = may_signal) -> None:
    """Be PID 1: serve the host until it goes away.

    Raises:
        SystemExit: the sandbox cannot keep its promises here; says why on stderr.
    """
    if not may_signal():
        sys.exit(NO_SIGNALS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mode, *words = sys.argv[1:] or [""]
    if mode == hold.MODE:
        _hold(hold.Hold(*words))
        return
    host = StdioLifeline(*take_stdio()) if mode == "stdio" else SocketLifeline(f"{RUN_DIR}/init.sock")
    Init(host, _booted(), Everyone()).serve()


def _hold(held: hold.Hold) -> None:
    """Boot first, so that the host finds all of it there."""
    run_kernel = _booted()
    host = held.await_host()
    Init(host, run_kernel, Everyone({host.pid})).serve()


def _booted() -> RunKernel:
    """Return what makes a fork of this process a kernel."""
    lay_names()
    run_kernel = boot(WORK_DIR)
    set_dumpable(False)  # no /proc/1/mem for the kernel, which has the same uid
    return partial(run_kernel, partial(supervise, Offspring(has_pid_1=os.getpid() == 1)))


def supervise(reach: Offspring, descriptors: list[int], go_on: GoOn) -> NoReturn:
    """Be the supervisor of a branch, on its lifeline and the socket that tells PID 1, until PID 1 ends it.

    The host, which hangs up, orders that as well. One that ended by itself would be one that code has ended.
    """
    lifeline, announced = descriptors
    habits = _Habits()
    processes.adopt_orphans()
    prefer_others()
    with socket.socket(fileno=announced) as to_parent:
        to_parent.send(AWAKE)

    def run_kernel(sockets: list[int], _work_dir: str) -> None:
        habits.restore()
        go_on(sockets)

    try:
        Init(StdioLifeline(lifeline, os.dup(lifeline)), run_kernel, reach).serve()
        reach.kill_all_but(())
        while True:
            signal.pause()
    finally:
        os._exit(0)


class _Habits:
    """The handlers, collector and seed that the code has set up, and that must not run in the supervisor."""

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._collects = gc.isenabled()
        self._seeded = random.getstate()  # each fork is seeded anew
        gc.disable()  # finalizers are code's, too
        for number, handler in self._handlers.items():
            if callable(handler) or number == signal.SIGCHLD:
                signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

    def restore(self) -> None:
        """Set all of it up again, in a fork."""
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        random.setstate(self._seeded)
        if self._collects:
            gc.enable()
