"""The kernels of one sandbox, one at a time: started fresh, or woken from a checkpoint."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

from agent_tools.engines.engine import Isolation
from agent_tools.errors import InvalidParams, KernelDied, PreludeError
from agent_tools.guest.wire.messages import DEFAULT_LIMIT, MessageLimits
from agent_tools.guest.wire.words import Branch, EndBranch, SocketOrder, Start, Wake
from agent_tools.limits import Limits
from agent_tools.results.execution import Cause, Died, Error, TimedOut
from agent_tools.results.variables import LOST, Hindrance, Variables
from agent_tools.runtime.kernel.channel import KernelChannel, NoCheckpoint
from agent_tools.runtime.kernel.kernel import Kernel, Runs
from agent_tools.runtime.kernel.protocol import KernelMessage
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.runtime.transport.transport import Transport, TransportName
from agent_tools.skills.skill import Skill

if TYPE_CHECKING:
    from agent_tools.runtime.host_calls.wire import ServesCalls


# The makings of a session, as a value.


@dataclass(frozen=True)
class Ahead:
    """The sandboxes to keep ready for sessions of one kind: how many, and the modules that are imported in them."""

    size: int = 0
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionSpec:
    """The makings of a session. `work_dir` exists and is the guest's to write.

    `transport` is 'sockets', 'stdio', or 'auto' for the fastest that works.
    """

    image: str
    work_dir: Path
    isolation: Isolation
    limits: Limits
    transport: TransportName = "auto"
    host_calls: ServesCalls | None = None
    prelude: str = ""
    """Code that every fresh kernel runs before anything else."""
    ahead: Ahead = Ahead()
    is_blank: bool = False
    """True for a sandbox made ahead, whose session, with its host functions, is not known yet."""
    idle_stop: float = 0.0
    """Seconds without use after which the processes of the sandbox are stopped until its next use; 0 for never."""
    checkpoint: bool = False
    """Whether kernels leave copies of themselves, one of which goes on when a kernel is killed."""
    skills: tuple[Skill, ...] = ()
    """Folders to mount read-only below /skills; none of them ever changes."""

    @property
    def telling_isolation(self) -> Isolation:
        """The isolation with the limits on messages in its environment, where they are not the usual ones.

        That of a blank sandbox has them already, from the session that it is like.
        """
        if self.is_blank:
            return self.isolation
        calls = self.host_calls.limits.max_message_bytes if self.host_calls else DEFAULT_LIMIT
        told = MessageLimits(int(self.limits.max_message_bytes), int(calls)).variables()
        return replace(self.isolation, env={**self.isolation.env, **told}) if told else self.isolation


class Kernels:
    """Has PID 1 make kernels, and connects to them. `orders` numbers the sandbox's orders that come with sockets."""

    def __init__(
        self, spec: SessionSpec, transport: Transport, lifeline: Lifeline, orders: itertools.count[int]
    ) -> None:
        self._spec = spec
        self._transport = transport
        self._lifeline = lifeline
        self._orders = orders
        self._calls = CallLine()
        self.runs = Runs()
        self._missing: NoCheckpoint | None = None  # until a kernel is started
        self.prelude = spec.prelude
        """What every fresh kernel runs first."""
        self.current: Kernel | None = None
        self.hindrance: Hindrance = ""
        """Why the checkpoint that went on was not a later one."""

    def start(self, deadline: float) -> Kernel:
        """Have PID 1 fork a fresh kernel, which knows of nothing but the prelude.

        Raises:
            KernelDied: it did not come up.
        """
        self.drop()
        self.runs.start_anew()
        self._missing = None
        self._connect(Start(next(self._orders)), deadline)
        self.define(self.prelude, deadline - time.monotonic())
        assert self.current
        return self.current

    def wake(self, deadline: float, run: int | None = None) -> int:
        """Have a checkpoint go on in place of the kernel: the latest, or that of this run while the kernel lives.

        Returns how many cells it does not know of, and sets `hindrance`.

        Raises:
            NoCheckpoint: there is none; a kernel that lives goes on.
            KernelDied: it did not come up.
        """
        if not self._spec.checkpoint:
            raise NoCheckpoint("")
        if self._missing and run is None:
            raise self._missing
        news = self._woken(deadline, run)
        known = news.get("run")
        if type(known) is not int or not 0 < known <= self.runs.latest:
            raise self._refused("it does not say what it knows")
        undone = self.runs.return_to(known)
        self.runs.is_taken_back = run is None and undone > 0
        if run is not None:
            self.runs.is_chosen()
        elif self.runs.wears_out(known):
            raise self._refused("its checkpoint ended again and again")
        if not self.runs.has_definitions(known):
            self.define(self.prelude, deadline - time.monotonic())
        self.hindrance = hindrance(news.get("skipped"))
        return undone

    def _woken(self, deadline: float, run: int | None) -> Mapping[str, Any]:
        """Have a checkpoint go on; return what it says of itself. Arguments and errors as for `wake`."""
        order = Wake(next(self._orders), self.runs.latest if run is None else run)
        try:
            return self._connect(order, deadline).content
        except KernelDied as exc:
            if run is None:
                self._missing = exc if isinstance(exc, NoCheckpoint) else NoCheckpoint("")
            elif self.current and not isinstance(exc, NoCheckpoint):
                self.current.abandon("a checkpoint that was to go on in its place did not")
            raise
        except BaseException:  # Ctrl-C: PID 1 has replaced the kernel, or is about to
            if self.current:
                self.current.abandon("the way back to a checkpoint was interrupted")
            raise

    def go_back(self, deadline: float) -> Variables:
        """Have the latest checkpoint go on in place of a kernel that has ended; say what became of the variables."""
        try:
            undone = self.wake(deadline)
        except NoCheckpoint as exc:
            return Variables(hindrance=hindrance(str(exc)))
        except (KernelDied, OSError):
            return LOST
        return Variables(True, undone, self.hindrance)

    def fork(self, seconds: float) -> tuple[int, socket.socket]:
        """Have a copy of the kernel as it is now become the supervisor of a branch; return its number and its lifeline.

        Raises:
            NoCheckpoint: no copy can be taken now.
        """
        opened: list[tuple[int, socket.socket]] = []

        def ask(run: int) -> None:
            order = Branch(next(self._orders), run)
            if sockets := self._transport.open(order, self._lifeline):
                opened.append((order.number, sockets[0]))

        assert self.current
        is_asked = self.current.mark(seconds, ask) and opened
        for _, refused in opened[:-1] if is_asked else opened:
            refused.close()
        if not is_asked:
            raise NoCheckpoint("")
        return opened[-1]

    def end_branch(self, number: int) -> None:
        """Have PID 1 end a branch, whatever state its supervisor is in."""
        self._lifeline.send(EndBranch(number))

    def define(self, source: str, seconds: float) -> None:
        """Let the kernel run code that is no cell of anybody's: it defines what the code is to find.

        Raises:
            PreludeError: it failed.
        """
        if source and self.current:
            for output in self.current.execute(source, seconds, kind="definition"):
                if isinstance(output, (Error, TimedOut, Died)):
                    raise PreludeError(f"The prelude failed: {output.text}")

    def adopt(self, spec: SessionSpec) -> None:
        """Let the kernel that is there be that of a session, with its host functions and definitions.

        Raises:
            PreludeError: the prelude failed.
        """
        self._spec, self.prelude = spec, spec.prelude
        self._calls.serve(spec)
        if self.current and spec.checkpoint:
            self.current.runs = self.runs
        self.define(spec.prelude, spec.limits.start_timeout)

    def drop(self) -> None:
        """Hang up on the kernel."""
        self._calls.close()
        if self.current:
            self.current.close()
            self.current = None

    def _refused(self, reason: str) -> KernelDied:
        """End a kernel that was woken; return the reason as an error."""
        if self.current:
            self.current.kill(reason)
            self.current.end()
        return KernelDied(reason)

    def _connect(self, order: SocketOrder, deadline: float) -> KernelMessage:
        """Connect to the kernel that comes by this order, in place of the one before; return its first message."""
        sockets = self._transport.open(order, self._lifeline)
        if sockets is None:
            raise KernelDied("the sandbox takes no orders")
        messages, calls = sockets
        limits = self._spec.limits
        with ExitStack() as undo:
            undo.enter_context(calls)
            channel = KernelChannel(messages, self._lifeline, order.number, limits.max_message_bytes)
            undo.callback(channel.close)
            first = channel.await_kernel(deadline, passes_over_text=isinstance(order, Wake))
            undo.pop_all()
        runs = self.runs if self._spec.checkpoint and not self._spec.is_blank else None
        self.drop()
        self.current = Kernel(channel, self._lifeline, limits, self._spec.isolation.memory, runs)
        self._calls.connect(calls, self._spec)
        return first


def hindrance(word: object) -> Hindrance:
    """Return the guest's word for what kept a checkpoint from being taken, '' for any other."""
    return next((each for each in get_args(Hindrance) if each == word), "")


# The branches that were made of one kernel, each with a session of its own, and how many a sandbox may have.


class BranchLike(Protocol):
    """A branch, as the one sees it that it was made of."""

    def kill(self, reason: str, cause: Cause) -> None:
        """End its code, and that of branches made of it; the variables come back with its next run."""
        ...

    def close(self) -> None:
        """End it, and the branches made of it."""
        ...


class BranchLimit:
    """Room for the branches of a sandbox, at most `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> None:
        """Make room for one.

        Raises:
            InvalidParams: there are too many.
        """
        with self._lock:
            if self._taken >= self._most:
                raise InvalidParams(
                    f"The sandbox has {self._most} forks already (max_branches): close one of them first."
                )
            self._taken += 1

    def leave(self) -> None:
        """Note that one is gone."""
        with self._lock:
            self._taken -= 1


class KernelBranches:
    """Those made of one kernel. Thread-safe."""

    def __init__(self, room: BranchLimit) -> None:
        self.room = room
        self.had_any = False
        """Whether code may have run in one."""
        self._lock = threading.Lock()
        self._open: list[BranchLike] = []
        self._is_closed = False

    def add(self, branch: BranchLike) -> None:
        """Note that one is open; it is closed at once where all have been."""
        with self._lock:
            self._open.append(branch)
            is_late = self._is_closed
        if is_late:
            branch.close()

    def remove(self, branch: BranchLike) -> None:
        """Note that one is closed; one that is not known is no error."""
        with self._lock:
            self._open = [each for each in self._open if each is not branch]

    def kill(self, reason: str, cause: Cause) -> None:
        """End the code of all of them."""
        for branch in self._all():
            branch.kill(reason, cause)

    def close(self) -> None:
        """End all of them, and those that come later."""
        with self._lock:
            self._is_closed = True
        for branch in self._all():
            branch.close()

    def _all(self) -> list[BranchLike]:
        with self._lock:
            return list(self._open)


# The socket over which a kernel calls functions of the host: served at once, or kept for a session that will come.


class CallLine:
    """That of the kernel which runs now. Used by the thread whose turn it is."""

    def __init__(self) -> None:
        self._kept: socket.socket | None = None

    def connect(self, calls: socket.socket, spec: SessionSpec) -> None:
        """Serve the socket of a fresh kernel, keep it, or close it if nobody will ever serve it."""
        self.close()
        self._kept = calls
        if not spec.is_blank:
            self.serve(spec)

    def serve(self, spec: SessionSpec) -> None:
        """Serve the socket that was kept, if the session has functions."""
        calls, self._kept = self._kept, None
        if calls and spec.host_calls:
            from agent_tools.runtime.host_calls.wire import CallWire  # which imports asyncio; most sessions need none

            spec.host_calls.serve(CallWire(calls, spec.host_calls.limits.max_message_bytes))
        elif calls:
            calls.close()

    def close(self) -> None:
        """Close what is kept."""
        if self._kept:
            self._kept.close()
            self._kept = None


# A holder of kernels, one at a time: a running sandbox, or a branch of one.


class KernelHolder(ABC):
    """The part of both that has to do with the kernel that serves now."""

    kernels: Kernels
    branches: KernelBranches
    """Those made of its kernel."""
    is_removed = False
    """True once it was ended from here."""

    @abstractmethod
    def use(self) -> AbstractContextManager[None]:
        """Around a use: what was stopped for want of use goes on."""

    @abstractmethod
    def start_kernel(self, patience: float) -> Kernel:
        """Have a kernel start where kernels of this start, in at most `patience` seconds, and connect to it.

        Raises:
            KernelDied: it did not come up.
        """

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that was connected to last; None once hung up."""
        return self.kernels.current

    @property
    def runs(self) -> Runs:
        """The runs that its kernels went through."""
        return self.kernels.runs

    def go_back(self, run: int, patience: float) -> None:
        """Have the checkpoint of this run go on in place of the kernel that lives; 0: a kernel that starts does.

        Raises:
            NoCheckpoint: there is none; the kernel goes on as it is.
            KernelDied: it did not come up.
        """
        with self.use():
            if run:
                self.kernels.wake(time.monotonic() + patience, run)
            else:
                self.start_kernel(patience)

    def define(self, source: str, seconds: float) -> None:
        """Let the kernel run code that is no cell of anybody's. Errors as for `Kernels.define`."""
        with self.use():
            self.kernels.define(source, seconds)

    def keep_prelude(self, prelude: str) -> None:
        """Have every later kernel run this prelude."""
        self.kernels.prelude = prelude
