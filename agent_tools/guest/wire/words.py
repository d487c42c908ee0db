"""The words of the lifeline, as values: what the host orders PID 1 to do, and what PID 1 reports.

One line of ASCII is one word with its arguments; on the mounted socket a line is a datagram, over stdio a frame of
channel 0 (mux.py).

    host  -> guest   start <generation>          with sockets for messages and host calls, and the alarm's page
                     wake <generation> <run>     with the same sockets: the checkpoint after this run is the kernel
                     files <number>              with one socket: serve work_dir on it
                     spawn <number>              with one socket: run the command it asks for (commands.py)
                     proxy <number>              with one socket: carry what connects to the proxy's port over it
                     arm <interrupt> <kill>      seconds until SIGINT, and from then until SIGKILL
                     mark <run>                  keep the copy that was left after this run
                     branch <number> <run>       with one socket: a fork of that copy is the supervisor of a branch
                     end_branch <number>         end it, and all that comes from it
                     interrupt <number> <kill>   of the alarm's page by which the run was armed, 0: by an order; seconds
                                                 from SIGINT until SIGKILL, 0: never
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
from collections.abc import Callable
from typing import ClassVar, Literal, Union

from .frozen import frozen

MAX_WORDS = 4096  # bytes in one line
LAST_WORDS_BYTES = 3000  # of text in one line
CHANNELS_PER_ORDER = 3  # numbers that an order with sockets takes up; 0 are the words themselves
NO_COPY = "no checkpoint"  # followed by why no copy was taken, if it is known
MAX_NUMBER = 2**31  # of a generation, a code or a signal: more is not believed


@frozen
class Start:
    """Fork a fresh kernel, after all that the last one left is gone. Sockets: its messages, its host calls."""

    number: int
    sockets: ClassVar[int] = 2


@frozen
class Wake:
    """Have the newest copy that was left after `run`, or before it, go on as the kernel. Sockets as for Start."""

    number: int
    run: int
    sockets: ClassVar[int] = 2


@frozen
class Files:
    """Serve work_dir on one socket, to a host that cannot see the folder."""

    number: int
    sockets: ClassVar[int] = 1


@frozen
class Spawn:
    """Run a command, which one socket says and answers for."""

    number: int
    sockets: ClassVar[int] = 1


@frozen
class Proxy:
    """Listen for the code's connections to the network, and carry them over one socket (proxy.py)."""

    number: int
    sockets: ClassVar[int] = 1


@frozen
class Arm:
    """Interrupt the kernel after so many seconds, and kill it after a grace (alarm.py), unless another order comes."""

    interrupt: float
    kill: float


@frozen
class Disarm:
    """Forget what was armed."""


@frozen
class Interrupt:
    """Send the kernel SIGINT, if the run goes on that it is meant for, and kill it after a grace, unless that is 0.

    That is the one armed by the page's change of this number (alarm.py), or by an order if there is no number.
    """

    number: int = 0
    kill: float = 0.0


@frozen
class Mark:
    """Keep the copy that was left after this run, whatever comes later; say whether there is one."""

    run: int


@frozen
class Branch:
    """Have the copy that was left after `run` fork a supervisor (supervisor.py); say whether there is such a copy.

    The socket is the supervisor's lifeline: words and channels as over stdio.
    """

    number: int
    run: int
    sockets: ClassVar[int] = 1


@frozen
class EndBranch:
    """End the supervisor that was made by the order of this number, and all that comes from it."""

    number: int


@frozen
class Kill:
    """End the kernel and all that it started."""


@frozen
class EndCommands:
    """End all commands and all that they started."""


@frozen
class Pause:
    """Stop every process but PID 1."""


@frozen
class Resume:
    """Let them go on."""


@frozen
class Rouse:
    """Wake those who serve files, commands and the network: code may have stopped them."""


@frozen
class Ready:
    """PID 1 listens to its stdin."""


@frozen
class Exit:
    """The kernel of a generation ended by itself with `code`, or by `signal`; `oom`: at the memory limit."""

    generation: int
    code: int = 0
    signal: int = 0
    oom: bool = False


@frozen
class Failed:
    """The kernel of a generation could not start; NO_COPY: there is no checkpoint that could go on."""

    generation: int
    traceback: str


@frozen
class Marked:
    """The copy that was left after a run is kept; 0: there is none."""

    generation: int
    run: int


@frozen
class Printed:
    """Text that the kernel of a generation had written last to a stream."""

    generation: int
    stream: Literal["stdout", "stderr"]
    text: str


SocketOrder = Union[Start, Wake, Files, Spawn, Proxy, Branch]
Order = Union[SocketOrder, Arm, Disarm, Interrupt, Mark, EndBranch, Kill, EndCommands, Pause, Resume, Rouse]
Report = Union[Ready, Exit, Failed, Marked, Printed]

WITH_SOCKETS = (Start, Wake, Files, Spawn, Proxy, Branch)
_NUMBERED: "dict[str, Callable[[int], Order]]" = {
    "start": Start,
    "files": Files,
    "spawn": Spawn,
    "proxy": Proxy,
    "mark": Mark,
    "end_branch": EndBranch,
}
_OF_RUNS: "dict[str, Callable[[int, int], Order]]" = {"wake": Wake, "branch": Branch}
_BARE: "dict[str, Order]" = {
    "disarm": Disarm(),
    "kill": Kill(),
    "end_commands": EndCommands(),
    "pause": Pause(),
    "resume": Resume(),
    "rouse": Rouse(),
}
_BARE_WORDS = {order: word for word, order in _BARE.items()}


def channels(order: SocketOrder) -> list[int]:
    """Return the numbers of the channels that carry an order's sockets over stdio."""
    first = CHANNELS_PER_ORDER * order.number
    return list(range(first, first + order.sockets))


def write_order(order: Order) -> bytes:
    """Return an order as a line."""
    if isinstance(order, (Wake, Branch)):
        return f"{type(order).__name__.lower()} {order.number} {order.run}".encode()
    if isinstance(order, WITH_SOCKETS):
        return f"{type(order).__name__.lower()} {order.number}".encode()
    if isinstance(order, Mark):
        return f"mark {order.run}".encode()
    if isinstance(order, EndBranch):
        return f"end_branch {order.number}".encode()
    if isinstance(order, Interrupt):
        return f"interrupt {order.number} {order.kill:.3f}".encode()
    if isinstance(order, Arm):
        return f"arm {order.interrupt:.3f} {order.kill:.3f}".encode()
    return _BARE_WORDS[order].encode()


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
    return f"exit {report.generation} {how}{' oom' if report.oom else ''}".encode()


def read_order(line: bytes) -> "Order | None":
    """Return the order in a line, None for words that are unknown."""
    words = line.decode("ascii", "replace").split()
    try:
        if len(words) == 2 and words[0] in _NUMBERED:
            return _NUMBERED[words[0]](int(words[1]))
        if len(words) == 3 and words[0] == "arm":
            return Arm(float(words[1]), float(words[2]))
        if len(words) == 3 and words[0] == "interrupt":
            return Interrupt(int(words[1]), float(words[2]))
        if len(words) == 3 and words[0] in _OF_RUNS:
            return _OF_RUNS[words[0]](int(words[1]), int(words[2]))
    except ValueError:
        return None
    return _BARE.get(words[0]) if len(words) == 1 else None


def read_report(line: bytes) -> "Report | None":
    """Return the report in a line of an untrusted guest, None for anything else."""
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
    oom = words[2:] == ["oom"]
    if len(words) != 2 + oom or (number := _number(words[1])) is None:
        return None
    if words[0] == "signal":
        return Exit(generation, signal=number, oom=oom)
    return Exit(generation, code=number, oom=oom) if words[0] == "code" else None


def _number(word: str) -> "int | None":
    """Return a whole number that is not absurd, None for anything else."""
    if not word.isascii() or not word.isdigit() or len(word) > 10:
        return None
    return number if (number := int(word)) < MAX_NUMBER else None
