"""The messages of the lifeline: orders of the host to PID 1, and reports of PID 1.

Each is one line (lines.py): on the mounted socket a datagram, over stdio a frame of channel 0 (mux.py).

    host  -> guest   start <generation>          with sockets for messages and host calls
                     wake <generation> <run>     with the same sockets: the checkpoint after this run is the kernel
                     files <number>              with one socket: serve work_dir on it
                     spawn <number>              with one socket: run the command it asks for (commands.py)
                     proxy <number>              with one socket: carry what connects to the proxy's port over it
                     arm <interrupt> <kill>      seconds until SIGINT, and from then until SIGKILL
                     mark <run>                  keep the copy that was left after this run
                     branch <number> <run>       with one socket: a fork of that copy is the supervisor of a branch
                     fresh_branch <number>       with one socket: a fork of PID 1 is, with fresh kernels
                     end_branch <number>         end it, and all that comes from it
                     interrupt <kill>            SIGINT, if a run is armed; seconds from then until SIGKILL, 0: never
                     disarm | kill | end_commands | pause | resume | rouse
    guest -> host    ready                       over stdio only: there a connection says nothing
                     exit <generation> <code> <signal> <oom> <folder> <files> <MiB>
                                                 oom is 0 or 1; the rest is about the fullest temporary folder
                     failed <generation> <traceback>
                     marked <generation> <run>   0 if there is no such copy; also the answer to branch
                     printed <generation> <stream> <text>
                                                 what the kernel that ended had written to its stdout or stderr last;
                                                 before `exit`

Orders that come with sockets count up, so that over stdio both ends know the channels that belong to one.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal, Union, get_args

from . import lines

CHANNELS_PER_ORDER = 3  # numbers that an order with sockets takes up; 0 are the words themselves
NO_COPY = "no checkpoint"  # followed by why no copy was taken, if it is known
MAX_GRACES = 3  # times its grace that a kernel may take to obey an interrupt if it gets no processor time
StreamName = Literal["stdout", "stderr"]
STREAMS: "tuple[StreamName, ...]" = get_args(StreamName)


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
class FreshBranch:
    """Fork a supervisor whose kernels are fresh; the socket is as for `Branch`."""

    number: int
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

FolderName = Literal["/tmp", "/var/tmp", "/dev/shm"]
TEMPORARY_FOLDERS: "tuple[FolderName, ...]" = get_args(FolderName)


@dataclass(frozen=True)
class Exit:
    """The kernel of a generation ended by itself with `code`, or by `signal`; `oom`: at the memory limit.

    `folder` is the fullest of TEMPORARY_FOLDERS, whose files count as memory, at that time; `mib` is their size.
    """

    generation: int
    code: int = 0
    signal: int = 0
    oom: bool = False
    folder: FolderName = TEMPORARY_FOLDERS[0]
    files: int = 0
    mib: int = 0


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
    stream: StreamName
    text: str


SocketOrder = Union[Start, Wake, Files, Spawn, Proxy, Branch, FreshBranch]
Order = Union[SocketOrder, Arm, Disarm, Interrupt, Mark, EndBranch, Kill, EndCommands, Pause, Resume, Rouse]
Report = Union[Ready, Exit, Failed, Marked, Printed]

WITH_SOCKETS = (Start, Wake, Files, Spawn, Proxy, Branch, FreshBranch)
_ORDERS: "dict[str, type[Order]]" = lines.words(*get_args(Order))
_REPORTS: "dict[str, type[Report]]" = lines.words(*get_args(Report))


def channels(order: SocketOrder) -> list[int]:
    """Return the numbers of the channels that carry an order's sockets over stdio."""
    first = CHANNELS_PER_ORDER * order.number
    return list(range(first, first + order.sockets))


def write(message: "Order | Report") -> bytes:
    """Return an order or a report as a line."""
    return lines.write(message)


def read_order(line: bytes) -> "Order | None":
    """Parse an order; return None for anything else."""
    with suppress(ValueError):
        return lines.read(line, _ORDERS)
    return None


def read_report(line: bytes) -> "Report | None":
    """Parse a report of an untrusted guest; return None for anything else."""
    with suppress(ValueError):
        return lines.read(line, _REPORTS)
    return None
