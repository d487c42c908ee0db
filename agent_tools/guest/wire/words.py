"""The messages of the lifeline: orders of the host to PID 1, and reports of PID 1.

One line of ASCII is one word with its arguments; on the mounted socket a line is a datagram, over stdio a frame of
channel 0 (mux.py).

    host  -> guest   start <generation>          with sockets for messages and host calls
                     wake <generation> <run>     with the same sockets: the checkpoint after this run is the kernel
                     files <number>              with one socket: serve work_dir on it
                     spawn <number>              with one socket: run the command it asks for (commands.py)
                     proxy <number>              with one socket: carry what connects to the proxy's port over it
                     arm <interrupt> <kill>      seconds until SIGINT, and from then until SIGKILL
                     mark <run>                  keep the copy that was left after this run
                     branch <number> <run>       with one socket: a fork of that copy is the supervisor of a branch
                     end_branch <number>         end it, and all that comes from it
                     interrupt <kill>            SIGINT, if a run is armed; seconds from then until SIGKILL, 0: never
                     disarm | kill | end_commands | pause | resume | rouse
    guest -> host    ready                       over stdio only: there a connection says nothing
                     exit <generation> code <n> [oom] | exit <generation> signal <n> [oom]
                     failed <generation> <traceback>
                     marked <generation> <run>   0 if there is no such copy; also the answer to branch
                     printed <generation> <stream> <text>
                                                 what the kernel that ended had written to its stdout or stderr last,
                                                 of UTF-8, in base64; before `exit`

Orders that come with sockets count up, so that over stdio both ends know the channels that belong to one.
"""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, Literal, Union

MAX_WORDS = 4096  # bytes in one line
LAST_WORDS_BYTES = 3000  # of text in one line
CHANNELS_PER_ORDER = 3  # numbers that an order with sockets takes up; 0 are the words themselves
NO_COPY = "no checkpoint"  # followed by why no copy was taken, if it is known
MAX_GRACES = 3  # times its grace that a kernel may take to obey an interrupt if it gets no processor time
MAX_NUMBER = 2**31  # of a generation, a code or a signal: more is not believed


@dataclass(frozen=True)
class Start:
    """Fork a fresh kernel, after ending all processes of the last one. Sockets: its messages, its host calls."""

    number: int
    sockets: ClassVar[int] = 2


@dataclass(frozen=True)
class Wake:
    """Make the newest checkpoint after `run`, or before it, the kernel. Sockets as for Start."""

    number: int
    run: int
    sockets: ClassVar[int] = 2


@dataclass(frozen=True)
class Files:
    """Serve work_dir on one socket, to a host that cannot see the folder."""

    number: int
    sockets: ClassVar[int] = 1


@dataclass(frozen=True)
class Spawn:
    """Run a command, which comes over one socket."""

    number: int
    sockets: ClassVar[int] = 1


@dataclass(frozen=True)
class Proxy:
    """Listen for the code's connections to the network, and carry them over one socket (proxy.py)."""

    number: int
    sockets: ClassVar[int] = 1


@dataclass(frozen=True)
class Arm:
    """Interrupt the kernel after a time in seconds, and kill it after a grace, unless another order comes.

    The grace of `kill` seconds is of the kernel's processor time, and at most MAX_GRACES times as long.
    """

    interrupt: float
    kill: float


@dataclass(frozen=True)
class Disarm:
    """Cancel the last Arm."""


@dataclass(frozen=True)
class Interrupt:
    """Send the kernel SIGINT, if its run is armed, and kill it after a grace, unless that is 0."""

    kill: float = 0.0


@dataclass(frozen=True)
class Mark:
    """Keep the checkpoint after this run; report whether there is one."""

    run: int


@dataclass(frozen=True)
class Branch:
    """Let the checkpoint after `run` fork a supervisor (supervisor.py); report whether there is one.

    The socket is the supervisor's lifeline: words and channels as over stdio.
    """

    number: int
    run: int
    sockets: ClassVar[int] = 1


@dataclass(frozen=True)
class EndBranch:
    """End the supervisor that was made by the order of this number, and all that comes from it."""

    number: int


@dataclass(frozen=True)
class Kill:
    """End the kernel and all that it started."""


@dataclass(frozen=True)
class EndCommands:
    """End all commands and all that they started."""


@dataclass(frozen=True)
class Pause:
    """Stop every process but PID 1."""


@dataclass(frozen=True)
class Resume:
    """Continue all processes."""


@dataclass(frozen=True)
class Rouse:
    """Continue the servers of files, commands and the network: code may have stopped them."""


@dataclass(frozen=True)
class Ready:
    """PID 1 listens to its stdin."""


WORK_DIR_NAMES = ("/mnt/data", "/home/user")
"""Other names of work_dir in a sandbox: those of OpenAI's and of E2B's code interpreters."""

TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True)
class TemporaryFiles:
    """The files of one of TEMPORARY_FOLDERS: their number, and the MiB of memory that they take."""

    folder: str
    files: int
    mib: int


@dataclass(frozen=True)
class Exit:
    """The kernel of a generation ended by itself with `code`, or by `signal`; `oom`: at the memory limit.

    `full` is what the fullest temporary folder, whose files count as memory, had at that time.
    """

    generation: int
    code: int = 0
    signal: int = 0
    oom: bool = False
    full: "TemporaryFiles | None" = None


@dataclass(frozen=True)
class Failed:
    """The kernel of a generation could not start; NO_COPY: there is no checkpoint to continue."""

    generation: int
    traceback: str


@dataclass(frozen=True)
class Marked:
    """The checkpoint after a run is kept; 0: there is none."""

    generation: int
    run: int


@dataclass(frozen=True)
class Printed:
    """The last text that the kernel of a generation wrote to a stream."""

    generation: int
    stream: Literal["stdout", "stderr"]
    text: str


SocketOrder = Union[Start, Wake, Files, Spawn, Proxy, Branch]
Order = Union[SocketOrder, Arm, Disarm, Interrupt, Mark, EndBranch, Kill, EndCommands, Pause, Resume, Rouse]
Report = Union[Ready, Exit, Failed, Marked, Printed]

WITH_SOCKETS = (Start, Wake, Files, Spawn, Proxy, Branch)


def _word(kind: type) -> str:
    """Return the word of a kind of order: EndBranch -> end_branch."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


_TYPES: "dict[Any, Callable[[str], float]]" = {int: int, float: float}
_KINDS: "dict[str, Any]" = {
    _word(kind): kind
    for kind in (
        *WITH_SOCKETS,
        *(Arm, Disarm, Interrupt, Mark, EndBranch, Kill, EndCommands, Pause, Resume, Rouse),
    )
}


def channels(order: SocketOrder) -> list[int]:
    """Return the numbers of the channels that carry an order's sockets over stdio."""
    first = CHANNELS_PER_ORDER * order.number
    return list(range(first, first + order.sockets))


def write_order(order: Order) -> bytes:
    """Return an order as a line."""
    values = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in astuple(order))
    return " ".join((_word(type(order)), *values)).encode()


def write_report(report: Report) -> bytes:
    """Return a report as a line of at most MAX_WORDS bytes."""
    if isinstance(report, Ready):
        return b"ready"
    if isinstance(report, Failed):
        return f"failed {report.generation} {report.traceback}".encode("ascii", "replace")[:MAX_WORDS]
    if isinstance(report, Marked):
        return f"marked {report.generation} {report.run}".encode()
    if isinstance(report, Printed):
        text = base64.b64encode(report.text.encode("utf-8", "replace")).decode()
        return f"printed {report.generation} {report.stream} {text}".encode()
    how = f"signal {report.signal}" if report.signal else f"code {report.code}"
    full = f" {report.full.folder} {report.full.files} {report.full.mib}" if report.full else ""
    return f"exit {report.generation} {how}{' oom' if report.oom else ''}{full}".encode()


def read_order(line: bytes) -> "Order | None":
    """Parse an order; return None for an unknown one."""
    word, *values = line.decode("ascii", "replace").split() or [""]
    kind = _KINDS.get(word)
    if kind is None or len(values) != len(fields(kind)):
        return None
    try:
        order: Order = kind(*(_TYPES[field.type](value) for field, value in zip(fields(kind), values)))
    except ValueError:
        return None
    return order


def read_report(line: bytes) -> "Report | None":
    """Parse a report of an untrusted guest; return None for anything else."""
    words = line[:MAX_WORDS].decode("ascii", "replace").split(maxsplit=2)
    if words == ["ready"]:
        return Ready()
    if len(words) != 3 or (generation := _number(words[1])) is None:
        return None
    if words[0] == "failed":
        return Failed(generation, words[2])
    if words[0] == "marked":
        return Marked(generation, run) if (run := _number(words[2])) is not None else None
    if words[0] == "printed":
        return _read_printed(generation, words[2].split())
    return _read_exit(generation, words[2].split()) if words[0] == "exit" else None


def _read_printed(generation: int, words: "list[str]") -> "Printed | None":
    if len(words) != 2 or words[0] not in ("stdout", "stderr"):
        return None
    stream: Literal["stdout", "stderr"] = "stdout" if words[0] == "stdout" else "stderr"
    try:
        text = base64.b64decode(words[1], validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None
    return Printed(generation, stream, text)


def _read_exit(generation: int, words: "list[str]") -> "Exit | None":
    oom = words[2:3] == ["oom"]
    full = _read_full(words[3:]) if oom else None
    if len(words) != 2 + oom + 3 * bool(full) or (number := _number(words[1])) is None:
        return None
    if words[0] == "signal":
        return Exit(generation, signal=number, oom=oom, full=full)
    return Exit(generation, code=number, oom=oom, full=full) if words[0] == "code" else None


def _read_full(words: "list[str]") -> "TemporaryFiles | None":
    if len(words) != 3 or words[0] not in TEMPORARY_FOLDERS:
        return None
    files, mib = _number(words[1]), _number(words[2])
    return None if files is None or mib is None else TemporaryFiles(words[0], files, mib)


def _number(word: str) -> "int | None":
    """Parse a whole number of reasonable length; return None for anything else."""
    if not word.isascii() or not word.isdigit() or len(word) > 10:
        return None
    return number if (number := int(word)) < MAX_NUMBER else None
