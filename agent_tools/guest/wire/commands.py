"""The frames (framing.py) on one command's socket, for both ends. Standard library only.

    both ways       LINE             one value as a line (lines.py): Signal, Resize; Started, Taken, CommandEnded
    host -> guest   SPEC             JSON, the first frame and the only one of its kind (at most MAX_SPEC bytes)
                    INPUT            bytes of stdin, at most WINDOW that are not taken yet; none end it
    guest -> host   STDOUT, STDERR   bytes that it wrote

The host's end of the socket is the command's life: where it is closed, the command is killed with all of its session.
A stream that is not read holds up its own command and no other.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union

from . import lines
from .framing import FrameReader, TooLarge, pack
from .words import StreamName

LINE, SPEC, INPUT, STDOUT, STDERR = range(1, 6)
MAX_FRAME = 64 * 1024  # bytes of stdin, stdout or stderr in a frame
MAX_SPEC = 4 * 1024 * 1024
MAX_SIZE = 2**16 - 1  # rows or columns of a terminal
MAX_CODE = 255  # an exit code, a signal or an errno
WINDOW = 256 * 1024  # bytes of stdin on their way
How = Literal["code", "signal", "no_program", "no_folder"]


@dataclass(frozen=True)
class Spec:
    """A command to run: `argv` as it is, or one text for a shell.

    Attributes:
        cwd: the folder it starts in, from work_dir on.
        env: environment variables to add to the sandbox's.
        timeout: seconds until SIGTERM; None for as long as the sandbox lives.
        grace: seconds from then until SIGKILL.
        has_stdin: False if its stdin is at its end from the start.
        terminal: rows and columns of a pseudo-terminal that is its stdin, stdout and stderr; None for pipes.
    """

    argv: "tuple[str, ...] | str"
    cwd: str
    env: Mapping[str, str]
    timeout: "float | None"
    grace: float
    has_stdin: bool = False
    terminal: "tuple[int, int] | None" = None


@dataclass(frozen=True)
class Input:
    """Bytes for the command's stdin; b'' ends it."""

    data: bytes


@dataclass(frozen=True)
class Signal:
    """A signal for the command's process group."""

    number: int

    def __post_init__(self) -> None:
        _check(self.number, MAX_CODE)


@dataclass(frozen=True)
class Resize:
    """The new size of its terminal."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        _check(max(self.rows, self.columns), MAX_SIZE)


@dataclass(frozen=True)
class Started:
    """The command runs, under this pid of the sandbox."""

    pid: int


@dataclass(frozen=True)
class Taken:
    """The command has read this many more bytes of stdin."""

    size: int


@dataclass(frozen=True)
class CommandPrinted:
    """Bytes that the command wrote; with a terminal all are stdout."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True)
class CommandEnded:
    """The end of a command: its exit code, the signal that ended it, or the errno of why it could not start."""

    how: How
    number: int
    timed_out: bool = False

    def __post_init__(self) -> None:
        _check(self.number, MAX_CODE)


def _check(number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise ValueError("a number out of range")


Order = Union[Spec, Input, Signal, Resize]
Event = Union[Started, Taken, CommandPrinted, CommandEnded]


_ORDERS: "dict[str, type[Signal | Resize]]" = lines.words(Signal, Resize)
_EVENTS: "dict[str, type[Started | Taken | CommandEnded]]" = lines.words(Started, Taken, CommandEnded)
_STREAMS: "dict[int, StreamName]" = {STDOUT: "stdout", STDERR: "stderr"}


def write(value: "Order | Event") -> bytes:
    """Return an order or an event as a frame; an Input and a CommandPrinted are of at most MAX_FRAME bytes.

    Raises:
        TooLarge: a Spec is longer than MAX_SPEC.
    """
    if isinstance(value, CommandPrinted):
        return pack(STDOUT if value.stream == "stdout" else STDERR, value.data)
    if isinstance(value, Input):
        return pack(INPUT, value.data)
    if not isinstance(value, Spec):
        return pack(LINE, lines.write(value))
    data = json.dumps(asdict(value)).encode()
    if len(data) > MAX_SPEC:
        raise TooLarge(f"the command and its variables take {len(data):,} bytes, more than {MAX_SPEC:,}")
    return pack(SPEC, data)


def orders() -> "FrameReader[Order]":
    """Return the guest's reader of messages from the host."""
    return FrameReader({LINE: lines.MAX_LINE, SPEC: MAX_SPEC, INPUT: MAX_FRAME}.get, _order)


def events() -> "FrameReader[Event]":
    """Return the host's reader of messages from an untrusted guest."""
    return FrameReader({LINE: lines.MAX_LINE, STDOUT: MAX_FRAME, STDERR: MAX_FRAME}.get, _event)


def _order(kind: int, payload: bytes) -> Order:
    if kind == LINE:
        return lines.read(payload, _ORDERS)
    return Input(payload) if kind == INPUT else _spec(**json.loads(payload))


def _event(kind: int, payload: bytes) -> Event:
    return lines.read(payload, _EVENTS) if kind == LINE else CommandPrinted(_STREAMS[kind], payload)


def _spec(argv: "list[str] | str", terminal: "list[int] | None", **found: Any) -> Spec:
    size = (terminal[0], terminal[1]) if terminal else None
    return Spec(argv if isinstance(argv, str) else tuple(argv), terminal=size, **found)
