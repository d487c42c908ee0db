"""The programs that own kernels: PID 1 of the sandbox with its boot, and the supervisor of each branch.

Theory of operation
    PID 1 boots once: it imports what a kernel needs and makes its shell, so that a kernel is a fork without imports.

    A branch goes on from a copy of the kernel, beside the kernel, with its own variables. A fork of the copy becomes
    the branch's supervisor: it does for the branch what PID 1 does for the sandbox, by the same code and in the same
    words, which come over one socket as they would over stdio. Its kernels are forks of it, so each begins with the
    state of the copy; a fork of PID 1 as supervisor has fresh kernels. It adopts orphans, so all processes of the
    branch can be told from the rest, and ended.

    The supervisor has the user of the code. Code that ends or stops it ends its own branch: the host sees the socket
    close, and PID 1 ends what is left.
"""

import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from .. import bundle, lazy_modules, preload
from ..checkpoints.datagrams import AWAKE
from ..forks import may_signal, set_dumpable
from ..gvisor import forbid_calls, is_gvisor
from ..process_scope import Descendants, WholeSandbox
from ..work_dir_names import link_names
from .hold import MODE, Hold
from .init import RUN_DIR, WORK_DIR, Init, RunKernel, supervise
from .lifeline import SocketLifeline, StdioLifeline, take_stdio
from .login_names import name_login, write_names

if TYPE_CHECKING:
    from ..startup import Supervise

    RunBooted = Callable[[Supervise, list[int], str], None]

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
    if is_gvisor():
        forbid_calls()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mode, *words = sys.argv[1:] or [""]
    if mode == MODE:
        _hold(Hold(*words))
        return
    host = StdioLifeline(*take_stdio()) if mode == "stdio" else SocketLifeline(f"{RUN_DIR}/init.sock")
    Init(host, _booted(), WholeSandbox()).serve()


def _hold(held: Hold) -> None:
    """Be PID 1 of a pod: boot, and then wait for the host."""
    run_kernel = _booted()
    host = held.await_host()
    Init(host, run_kernel, WholeSandbox({host.pid})).serve()


def _booted() -> RunKernel:
    """Boot; return the function by which a fork of this process becomes a kernel."""
    write_names()
    if os.getpid() == 1:
        name_login()
        link_names(WORK_DIR)
    run_kernel = boot(WORK_DIR)
    set_dumpable(False)  # no /proc/1/mem for the kernel, which has the same uid
    return partial(run_kernel, partial(go_on_as_supervisor, Descendants(has_pid_1=os.getpid() == 1)))


def go_on_as_supervisor(scope: Descendants, descriptors: list[int], go_on: GoOn) -> NoReturn:
    """Be the supervisor of a branch, in a fork of a copy of the kernel.

    `descriptors`: the branch's lifeline, and the socket that tells PID 1 that this supervisor is awake.
    """
    lifeline, announced = descriptors
    habits = _Habits()
    with socket.socket(fileno=announced) as to_parent:
        to_parent.send(AWAKE)

    def run_kernel(sockets: list[int], _work_dir: str) -> None:
        habits.restore()
        go_on(sockets)

    supervise(lifeline, run_kernel, scope)


class _Habits:
    """Signal handlers, garbage collector and random seed that code has set up: off in the supervisor, on in kernels."""

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


def boot(work_dir: str) -> "RunBooted":
    """Boot; return the function by which a forked process becomes a kernel."""
    gc.disable()  # what is imported stays
    modules = preload.names()
    with lazy_modules.stand_ins():
        from .. import startup  # its imports meet the stand-ins

        startup.prepare(work_dir)
    bundle.uninstall()
    run_kernel = _preloaded(modules, startup.run_kernel) if modules else startup.run_kernel
    gc.freeze()  # keeps the forks' pages shared
    gc.enable()
    return run_kernel


def _preloaded(modules: list[str], run_kernel: "RunBooted") -> "RunBooted":
    """Import modules; return `run_kernel` for kernels with them, which raises at their start if the import failed."""
    failure: Exception | None = None
    try:
        preload.preload(modules)
    except Exception as exc:  # noqa: BLE001  (whatever a module raises when it is imported)
        failure = exc

    def run(supervise: "Supervise", descriptors: list[int], work_dir: str) -> None:
        if failure:
            raise failure
        preload.renew()
        run_kernel(supervise, descriptors, work_dir)

    return run
