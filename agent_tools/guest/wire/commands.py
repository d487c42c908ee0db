"""The frames on one command's socket, for both ends. Standard library only.

    frame           u8 kind, u32 length, payload

    host -> guest   1 Spec      JSON, the first frame and the only one of its kind (at most MAX_SPEC bytes)
                    2 Input     bytes of stdin, at most WINDOW that are not taken yet; none end it
                    3 Signal    u8 number, for the command's process group
                    4 Resize    u16 rows, u16 columns of its terminal
    guest -> host   16 Started  u32 pid
                    17 Taken    u32 bytes of stdin that the command has room for again
                    18 Printed  bytes of stdout
                    19 Printed  bytes of stderr
                    20 Ended    u8 how (0 code, 1 signal, 2 no program, 3 no folder), u32 that code, signal or errno,
                                u8 1 if its time limit ended it

The host's end of the socket is the command's life: where it is closed, the command is killed with all of its session.
A stream that is not read holds up its own command and no other.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union

from .framing import FrameBuffer
from .words import StreamName

MAX_FRAME = 64 * 1024  # bytes of every payload but a Spec's
MAX_SPEC = 4 * 1024 * 1024
WINDOW = 256 * 1024  # bytes of stdin on their way
_HEADER = struct.Struct(">BI")
_ENDED = struct.Struct(">BIB")
_SIZE = struct.Struct(">HH")

How = Literal["code", "signal", "no program", "no folder"]
HOWS: tuple[How, ...] = ("code", "signal", "no program", "no folder")


class CommandError(ValueError):
    """The other end broke the protocol or a bound of it."""


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


@dataclass(frozen=True)
class Resize:
    """The new size of its terminal."""

    rows: int
    columns: int


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


Order = Union[Spec, Input, Signal, Resize]
Event = Union[Started, Taken, CommandPrinted, CommandEnded]


def write_spec(spec: Spec) -> bytes:
    """Return a spec as a frame.

    Raises:
        CommandError: it is longer than MAX_SPEC.
    """
    data = json.dumps(asdict(spec)).encode()
    if len(data) > MAX_SPEC:
        raise CommandError(f"the command and its variables take {len(data):,} bytes, more than {MAX_SPEC:,}")
    return _frame(1, data)


def write_order(order: "Input | Signal | Resize") -> bytes:
    """Return any other order as a frame; an Input is of at most MAX_FRAME bytes."""
    if isinstance(order, Input):
        return _frame(2, order.data)
    if isinstance(order, Signal):
        return _frame(3, bytes([order.number]))
    return _frame(4, _SIZE.pack(order.rows, order.columns))


def write_event(event: Event) -> bytes:
    """Return an event as a frame; a CommandPrinted is of at most MAX_FRAME bytes."""
    if isinstance(event, Started):
        return _frame(16, struct.pack(">I", event.pid))
    if isinstance(event, Taken):
        return _frame(17, struct.pack(">I", event.size))
    if isinstance(event, CommandPrinted):
        return _frame(18 if event.stream == "stdout" else 19, event.data)
    return _frame(20, _ENDED.pack(HOWS.index(event.how), event.number, event.timed_out))


class CommandReader:
    """Cuts a byte stream into the values of its frames; `orders()` and `events()` make one for either end."""

    def __init__(self, kinds: "Mapping[int, tuple[int, Callable[[bytes], Any]]]") -> None:
        self._kinds = kinds
        self._frames = FrameBuffer(self._measure)

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the values that are complete now. Read it to its end.

        Raises:
            CommandError: a frame of an unknown kind, malformed or over its limit.
        """
        for head, payload in self._frames.feed(data):
            yield _read(self._kinds[head[0]][1], payload)

    def _measure(self, buffer: bytearray) -> "tuple[int, int] | None":
        if len(buffer) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(buffer)
        if length > (self._kinds[kind][0] if kind in self._kinds else -1):
            raise CommandError(f"a frame of kind {kind} and {length:,} bytes")
        return _HEADER.size, _HEADER.size + length


def orders() -> CommandReader:
    """Return the guest's reader of messages from the host."""
    return CommandReader(_ORDERS)


def events() -> CommandReader:
    """Return the host's reader of messages from an untrusted guest."""
    return CommandReader(_EVENTS)


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def _read(read: "Callable[[bytes], Any]", payload: bytes) -> Any:
    try:
        return read(payload)
    except (struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError) as exc:
        raise CommandError(f"a malformed frame ({type(exc).__name__})") from exc


def _spec(payload: bytes) -> Spec:
    found = json.loads(payload)
    argv, terminal = found.pop("argv"), found.pop("terminal")
    return Spec(argv if isinstance(argv, str) else tuple(argv), terminal=tuple(terminal) if terminal else None, **found)


def _ended(payload: bytes) -> CommandEnded:
    how, number, timed_out = _ENDED.unpack(payload)
    if number > 255 or timed_out > 1:
        raise ValueError("a number out of range")
    return CommandEnded(HOWS[how], number, bool(timed_out))


def _number(payload: bytes) -> int:
    number: int = struct.unpack(">I", payload)[0]
    return number


_ORDERS: "Mapping[int, tuple[int, Callable[[bytes], Any]]]" = {
    1: (MAX_SPEC, _spec),
    2: (MAX_FRAME, Input),
    3: (1, lambda payload: Signal(payload[0])),
    4: (_SIZE.size, lambda payload: Resize(*_SIZE.unpack(payload))),
}
_EVENTS: "Mapping[int, tuple[int, Callable[[bytes], Any]]]" = {
    16: (4, lambda payload: Started(_number(payload))),
    17: (4, lambda payload: Taken(_number(payload))),
    18: (MAX_FRAME, lambda payload: CommandPrinted("stdout", payload)),
    19: (MAX_FRAME, lambda payload: CommandPrinted("stderr", payload)),
    20: (_ENDED.size, _ended),
}
