"""The programs that own kernels: PID 1 of the sandbox with its boot, and the supervisor of each branch.

Theory of operation
    PID 1 boots once: it imports what a kernel needs and makes its shell, so that a kernel is a fork without imports.

    A branch goes on from a copy of the kernel, beside the kernel, with its own variables. A fork of the copy becomes
    the branch's supervisor: it does for the branch what PID 1 does for the sandbox, by the same code and in the same
    words, which come over one socket as they would over stdio. Its kernels are forks of it, so each begins with the
    state of the copy. It adopts orphans, so all processes of the branch can be told from the rest, and ended.

    The supervisor has the user of the code. Code that ends or stops it ends its own branch: the host sees the socket
    close, and PID 1 ends what is left.
"""

import contextlib
import gc
import os
import pwd
import random
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from .. import bundle, lazy_modules, preload, processes
from ..checkpoints.datagrams import AWAKE
from ..checkpoints.oom_priority import KERNEL_LAST, rank
from ..processes import Descendants, WholeSandbox, may_signal, set_dumpable
from ..work_dir_names import link_names
from .hand_over import ADDRESS
from .init import RUN_DIR, WORK_DIR, Init, RunKernel
from .lifeline import Received, SocketLifeline, StdioLifeline, take_stdio

# PID 1 of a pod: it boots and holds the sandbox until a program executed beside it hands over its stdin and stdout.
#
# Theory of operation
#     What PID 1 of a pod prints is kept in the log of its node, so the host cannot be spoken to over PID 1's own
#     stdout. It is spoken to over that of an executed program (hand_over.py), which is in no log. PID 1 gets these
#     descriptors and serves as if they were its own; it is PID 1 all the same, so it reaches every process and none
#     reaches it. It has booted before, so a sandbox that waits in a pool has its imports behind it. Only the first
#     that connects is listened to, and no code has run by then. What an engine cannot limit in a pod, PID 1 limits at
#     its start.

MODE = "hold"
CREDENTIALS = struct.Struct("3i")  # unix(7), SO_PEERCRED: pid, uid, gid
STREAMS = 2  # stdin and stdout


class Hold:
    """The arguments after `hold` on the command line, in order.

    Attributes:
        open_files: descriptors of one process.
        file_size: bytes of the largest file.
        patience: seconds until the streams must be passed; 0 for no limit.
    """

    def __init__(self, open_files: str, file_size: str, patience: str) -> None:
        limit(resource.RLIMIT_NOFILE, int(open_files))
        limit(resource.RLIMIT_FSIZE, int(file_size))
        limit(resource.RLIMIT_CORE, 0)
        self._patience = float(patience) or None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(ADDRESS)
        self._listener.listen(1)

    def await_host(self) -> "HeldLifeline":
        """Wait for the streams.

        Raises:
            SystemExit: they were not passed in time; the sandbox ends.
        """
        self._listener.settimeout(self._patience)
        try:
            with self._listener:
                bearer, _ = self._listener.accept()
            descriptors = handed_over(bearer, self._patience)
        except OSError:  # a TimeoutError, too
            sys.exit("nobody has handed over a stream")
        silence()
        return HeldLifeline(bearer, *descriptors)


class HeldLifeline(StdioLifeline):
    """The streams of the bearer, the program that has handed them over. It has ended with either of them."""

    def __init__(self, bearer: socket.socket, stdin: int, stdout: int) -> None:
        self.bearer = bearer
        self.pid = CREDENTIALS.unpack(bearer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[0]
        super().__init__(stdin, stdout)

    def watched(self) -> tuple[list[int], list[int]]:
        """Return the descriptors to wait for: to read from, and to write to."""
        readers, writers = super().watched()
        return [self.bearer.fileno(), *readers], writers

    def exchange(self, ready: set[int]) -> list[Received]:
        """Carry what the channels say, and return the orders that have come."""
        orders = super().exchange(ready)
        self.is_open = self.is_open and self.bearer.fileno() not in ready
        return orders

    def close(self) -> None:
        """Let go of it, in a fork."""
        super().close()
        self.bearer.close()


def handed_over(bearer: socket.socket, patience: float | None) -> list[int]:
    """Return the two descriptors that a client brings.

    Raises:
        OSError: these do not come in time, or others do; nothing of them stays open.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(bearer.close)
        bearer.settimeout(patience)
        _, descriptors, flags, _ = socket.recv_fds(bearer, 1, STREAMS, socket.MSG_CMSG_CLOEXEC)
        for descriptor in descriptors:
            undo.callback(os.close, descriptor)
        if len(descriptors) != STREAMS or flags & socket.MSG_CTRUNC:
            raise OSError("these are not two streams")
        bearer.settimeout(None)
        undo.pop_all()
    return list(descriptors)


def limit(what: int, most: int) -> None:
    """Set a limit for this process and its descendants; a lower limit stays."""
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def silence() -> None:
    """Make nothing of PID 1's own streams, which lead into the log of the node."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


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
    return partial(run_kernel, partial(supervise, Descendants(has_pid_1=os.getpid() == 1)))


def supervise(scope: Descendants, descriptors: list[int], go_on: GoOn) -> NoReturn:
    """Be the supervisor of a branch, until PID 1 ends it, which the host orders when it hangs up.

    `descriptors`: the branch's lifeline, and the socket that tells PID 1 that this supervisor is awake.
    """
    lifeline, announced = descriptors
    habits = _Habits()
    processes.adopt_orphans()
    rank("self", KERNEL_LAST)
    with socket.socket(fileno=announced) as to_parent:
        to_parent.send(AWAKE)

    def run_kernel(sockets: list[int], _work_dir: str) -> None:
        habits.restore()
        go_on(sockets)

    try:
        Init(StdioLifeline(lifeline, os.dup(lifeline)), run_kernel, scope).serve()
        scope.kill_all_but(())
        while True:
            signal.pause()
    finally:
        os._exit(0)


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


# The boot.


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


# Names of the user and the group that the sandbox runs as, for any ids.
#
# The image's /etc/passwd and /etc/group are links to files below HOME, which is writable. PID 1 writes these files
# again, with a line for its ids. Nothing in the sandbox gives rights to a name.


NAME = "sandbox"
BASE = "/usr/share/agent_tools"  # the image's own tables
SHELL = "/bin/bash"  # of the user, where the image has it
TABLES = ("passwd", "group")


def name_login(loginuid: str = "/proc/self/loginuid") -> None:
    """Set the audit identity of this process and all that follow it: once it is set, code cannot choose another."""
    with (
        contextlib.suppress(OSError),
        open(loginuid, "w") as file,
    ):  # OSError: there is none, or the engine's is inherited
        file.write(str(os.getuid()))


def write_names(etc: str = "/etc", base: str = BASE) -> None:
    """Write the tables to the targets of the image's links, and set USER, LOGNAME and SHELL.

    Tables that are not links stay as they are.
    """
    for table in TABLES:
        with contextlib.suppress(OSError):
            _write_table(table, os.readlink(f"{etc}/{table}"), base)
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(os.getuid()).pw_name
        os.environ.setdefault("USER", name)
        os.environ.setdefault("LOGNAME", name)
    if os.path.exists(SHELL):
        os.environ.setdefault("SHELL", SHELL)  # for `!` in cells; IPython's default is sh


def _write_table(table: str, target: str, base: str) -> None:
    with open(f"{base}/{table}", encoding="utf-8") as file:
        lines = file.read().splitlines()
    number = os.getuid() if table == "passwd" else os.getgid()
    if not any(line.split(":")[2:3] == [str(number)] for line in lines):
        lines.append(_line(table))
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _line(table: str) -> str:
    """Return our own line: passwd(5), group(5)."""
    if table == "group":
        return f"{NAME}:x:{os.getgid()}:"
    home = os.environ.get("HOME", "/")
    return f"{NAME}:x:{os.getuid()}:{os.getgid()}:{NAME}:{home}:{SHELL}"
