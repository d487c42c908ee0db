"""Saves variables: forks of the kernel pickle them, while the kernel itself continues at once.

Theory of operation
    The kernel forks, and is done: nothing that pickling does or suffers reaches it. The fork, which has all variables
    as they were at this moment, watches over a second one, which pickles one variable after the other and sends its
    record. A variable that raises or takes too long costs itself alone. One that does not even heed an alarm, or takes
    the process with it, costs that process: another fork goes on behind it, with a memo of its own.

    Each variable may take half of the time that is left, so that one that hangs leaves time for the others.
"""

import contextlib
import gc
import json
import os
import re
import signal
import socket
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..checkpoints.oom_priority import COPY_FIRST, rank
from ..files.content import Content
from ..forks import silence
from ..kernel.shell import SandboxShell
from ..wire.sockets import await_input
from .record_buffer import SessionPickler, VariableTooLarge, packed
from .time_limit import TimeLimit, TooSlow, ring

CHUNK_BYTES = 1024 * 1024  # bytes
GRACE = 1.0  # seconds from the alarm to the end of a process that does not heed it
MAX_REASON = 300  # characters
MAX_NAME = 200
MIN_SECONDS = 0.01
_NOT_THEIRS = re.compile(
    r"_+|_i+|_i?\d+|_[doi]h|In|Out|exit|quit|get_ipython"
    r"|__(annotat\w+|builtins?|cached|conditional_annotations|doc|file|loader|name|package|spec|warningregistry)__"
)

Variables = list[tuple[str, Any]]


@dataclass(frozen=True)
class Bounds:
    """Limits on saving: bytes and variables in all, and seconds for pickling."""

    bytes: int
    seconds: float
    variables: int


def variables_of(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> Variables:
    """Return the variables of the session, in order, without those that existed before any code ran."""
    return [
        (name, value)
        for name, value in namespace.items()
        if isinstance(name, str) and not _NOT_THEIRS.fullmatch(name) and not (name in hidden and hidden[name] is value)
    ]


def begin(address: str, bounds: Bounds, provided: Mapping[str, Any]) -> None:
    """Send the variables and then a report to the listener; return as soon as a fork has them.

    Args:
        address: the name of the abstract socket.
        bounds: the most that is saved.
        provided: the names that the host has defined: a fresh kernel has them, too.
    """
    shell = SandboxShell.instance()
    variables = variables_of(shell.user_ns, {**shell.user_ns_hidden, **provided})
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(f"\0{address}")
        child = _fork()
        if child == 0:
            try:
                if _fork() == 0:
                    _become_background(connected)
                    Saving(connected, variables, shell.user_ns, bounds).run()
            finally:
                os._exit(0)
        with contextlib.suppress(ChildProcessError):  # code ignores SIGCHLD
            os.waitpid(child, 0)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which a fork has not: it only reads
        return os.fork()


def _become_background(connected: socket.socket) -> None:
    """Release all resources of the kernel, first its sockets.

    Numbers of descriptors stay taken: an object that owns one, such as a memory map, closes the descriptor with its
    number. They cannot be read from, so that no empty file is saved for one that was open.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    silence(0, 1, 2)
    unread = os.open(os.devnull, os.O_WRONLY)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != connected.fileno():
            with contextlib.suppress(OSError):
                os.dup2(unread, int(name))
    rank("self", COPY_FIRST)


@dataclass
class Saving:
    """The process that supervises the pickling processes. Its report is limited to the same number of variables."""

    connected: socket.socket
    variables: Variables
    namespace: dict[str, Any]
    bounds: Bounds
    bytes_left: int = 0
    seconds_left: float = 0.0
    kept: list[str] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Save all variables, then report the missing ones."""
        self.bytes_left, self.seconds_left = self.bounds.bytes, self.bounds.seconds
        self._leave_out_excess()
        number = 0
        while number < len(self.variables):
            number = self._watch(number)
        stream: Any = self.connected.makefile("wb")
        content = Content(stream)
        content.write(packed({"missing": self.missing}))
        content.end()
        content.write(json.dumps({"kept": self.kept, "missing": self.missing}).encode())
        content.end()
        content.push()

    def _leave_out_excess(self) -> None:
        excess = len(self.variables) - self.bounds.variables
        if excess > 0:
            del self.variables[self.bounds.variables - 1 :]
            reason = f"there are more than {self.bounds.variables:,} variables (max_variables)"
            self.missing.append((f"({excess + 1:,} more)", reason))

    def _watch(self, first: int) -> int:
        """Fork what pickles the variables from this one on; return the number of the first that it left to others."""
        reader, writer = os.pipe()
        pid = _fork()
        if pid == 0:
            status = 1
            try:
                Worker(self, writer).run(first)
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        with open(reader, "rb", buffering=0) as reports:
            number, reason = self._follow(first, reports)
        if reason:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if number < len(self.variables):
            self._miss(number, reason or _ended(code))
            number += 1
        return number

    def _follow(self, number: int, reports: Any) -> tuple[int, str]:
        """Take in reports to their end; return the number of the variable at which they end, and why if it is known."""
        text, due = b"", None
        while True:
            wait = None if due is None else max(0.0, due - time.monotonic())
            if not await_input(reports.fileno(), wait):
                self.seconds_left /= 2
                return number, _too_slow(self.bounds)
            data = reports.read(CHUNK_BYTES)
            if not data:
                return number, ""
            *lines, text = (text + data).split(b"\n")
            for report in map(json.loads, lines):
                due = time.monotonic() + report["begins"] + GRACE if "begins" in report else None
                number += self._note(number, **report)

    def _note(
        self,
        number: int,
        begins: float = 0.0,
        took: float = 0.0,
        size: int = 0,
        reason: str = "",
        nobody_listens: bool = False,
    ) -> bool:
        """Take in one report; return whether it ends its variable."""
        if nobody_listens:
            os._exit(1)
        self.seconds_left -= took
        self.bytes_left -= size
        if reason:
            self._miss(number, reason)
        elif size:
            self.kept.append(self.variables[number][0][:MAX_NAME])
        return bool(reason or size)

    def _miss(self, number: int, reason: str) -> None:
        self.missing.append((self.variables[number][0][:MAX_NAME], reason[:MAX_REASON]))


class Worker:
    """A process that pickles variables and sends their records. It reports what it begins, and how that ended."""

    def __init__(self, saving: Saving, reports: int) -> None:
        gc.disable()  # else it would write to all that is shared, and run finalizers
        self._saving = saving
        self._reports = reports
        self._pickler = SessionPickler(saving.namespace)
        stream: Any = saving.connected.makefile("wb")
        self._content = Content(stream)
        self._bytes_left, self._seconds_left = saving.bytes_left, saving.seconds_left

    def run(self, first: int) -> None:
        """Save the variables from this one on."""
        for name, value in self._saving.variables[first:]:
            seconds = max(self._seconds_left / 2, MIN_SECONDS)
            self._report(begins=seconds)
            started = time.monotonic()
            record, reason = self._record(name, value, seconds)
            took = time.monotonic() - started
            self._seconds_left -= took
            if reason:
                self._report(took=took, reason=reason)
                continue
            self._report(took=took)
            size = sum(map(len, record))
            self._bytes_left -= size
            self._send(record)
            self._report(size=size)

    def _record(self, name: str, value: Any, seconds: float) -> tuple[list[memoryview], str]:
        """Return the record of a variable, or the reason why there is none."""
        signal.signal(signal.SIGALRM, ring)
        try:
            pieces = self._pickler.record(name, value, self._bytes_left, TimeLimit(seconds))
            return [memoryview(piece).cast("B") for piece in pieces], ""
        except VariableTooLarge:
            most = self._saving.bounds.bytes
            return [], f"it is larger than what is left of {most:,} bytes (max_variables_bytes)"
        except TooSlow:
            return [], _too_slow(self._saving.bounds)
        except BaseException as exc:  # noqa: BLE001  (whatever the code of its classes raises)
            return [], described(exc)

    def _send(self, record: list[memoryview]) -> None:
        try:
            for piece in record:
                self._content.write(piece)
            self._content.push()
        except OSError:
            self._report(nobody_listens=True)
            os._exit(1)

    def _report(self, **report: Any) -> None:
        os.write(self._reports, json.dumps(report).encode() + b"\n")


def described(exc: BaseException) -> str:
    """Return what was raised in one line; what cannot even be shown has its type's name."""
    try:
        text = " ".join(str(exc).split())
    except BaseException:  # noqa: BLE001  (it is the user's own)
        text = ""
    return f"{type(exc).__name__}: {text}"[:MAX_REASON] if text else type(exc).__name__


def _too_slow(bounds: Bounds) -> str:
    return f"it took too long: all variables have {bounds.seconds:g} s (variables_timeout), each half of what is left"


def _ended(code: int) -> str:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    hint = ", as the memory limit does" if code == -signal.SIGKILL else ""
    return f"the process that pickled it was ended {how}{hint}"
