"""The kernels of one sandbox, one at a time: a fresh kernel, or one from a checkpoint."""

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
from agent_tools.engines.volumes import Volume
from agent_tools.errors import InvalidParams, KernelDied, PreludeError
from agent_tools.guest.wire.messages import DEFAULT_LIMIT, MessageLimits
from agent_tools.guest.wire.words import Branch, EndBranch, SocketOrder, Start, Wake
from agent_tools.limits import Limits
from agent_tools.results.execution import Cause, Died, Error, TimedOut
from agent_tools.results.variables import LOST, Hindrance, Variables
from agent_tools.runtime.kernel.channel import KernelChannel, NoCheckpoint
from agent_tools.runtime.kernel.kernel import Kernel, Runs
from agent_tools.runtime.kernel.protocol import BackgroundText, KernelMessage
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.runtime.transport.transport import Transport, TransportName
from agent_tools.skills.skill import Skill

if TYPE_CHECKING:
    from agent_tools.runtime.host_calls.host_calls import HostCalls


# The specification of a session, as a value.


@dataclass(frozen=True)
class Ahead:
    """Pool options of a session: the number of ready sandboxes, and the modules imported in them."""

    size: int = 0
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionSpec:
    """Everything needed to create a session. `work_dir` exists and the guest can write to it.

    `transport` is 'sockets', 'stdio', or 'auto' for the fastest that works.
    """

    image: str
    work_dir: Path
    isolation: Isolation
    limits: Limits
    transport: TransportName = "auto"
    host_calls: HostCalls | None = None
    prelude: str = ""
    """Code that every fresh kernel runs before anything else."""
    ahead: Ahead = Ahead()
    is_blank: bool = False
    """True for a sandbox made ahead, whose session and host functions are not known yet."""
    idle_stop: float = 0.0
    """Seconds without use after which the processes of the sandbox are stopped until its next use; 0 for never."""
    checkpoint: bool = False
    """Whether kernels leave checkpoints, one of which continues when a kernel is killed."""
    skills: tuple[Skill, ...] = ()
    """Folders to mount read-only below /skills; none of them ever changes."""
    volumes: tuple[Volume, ...] = ()

    @property
    def telling_isolation(self) -> Isolation:
        """Return the isolation with non-default limits on messages in its environment.

        A sandbox made ahead has them already, from the session that it is made for.
        """
        if self.is_blank:
            return self.isolation
        calls = self.host_calls.limits.max_message_bytes if self.host_calls else DEFAULT_LIMIT
        told = MessageLimits(int(self.limits.max_message_bytes), int(calls)).variables()
        return replace(self.isolation, env={**self.isolation.env, **told}) if told else self.isolation


class Kernels:
    """Orders kernels from PID 1, and connects to them. `orders` numbers the sandbox's orders that carry sockets."""

    def __init__(
        self, spec: SessionSpec, transport: Transport, lifeline: Lifeline, orders: itertools.count[int]
    ) -> None:
        self._spec = spec
        self._transport = transport
        self._lifeline = lifeline
        self._orders = orders
        self._calls = CallLine()
        self.runs = Runs()
        self.background = BackgroundText(spec.limits)
        """The text of background code that no run has shown; it outlives the kernel."""
        self._missing: NoCheckpoint | None = None  # until a kernel is started
        self.prelude = spec.prelude
        """The code that every fresh kernel runs first."""
        self.current: Kernel | None = None
        self.hindrance: Hindrance = ""
        """Why no later checkpoint could continue."""

    def start(self, deadline: float) -> Kernel:
        """Order PID 1 to fork a fresh kernel, which only runs the prelude.

        Raises:
            KernelDied: it did not start.
        """
        self.drop()
        self.runs.start_anew()
        self._missing = None
        self._connect(Start(next(self._orders)), deadline)
        self.define(self.prelude, deadline - time.monotonic())
        assert self.current
        return self.current

    def wake(self, deadline: float, run: int | None = None) -> int:
        """Replace the kernel by a checkpoint: the latest, or the one of this run while the kernel lives.

        Return how many cells it lacks, and set `hindrance`.

        Raises:
            NoCheckpoint: there is none; a live kernel continues.
            KernelDied: it did not start.
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
        """Continue a checkpoint; return its report about itself. Arguments and errors as for `wake`."""
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
        """Replace an ended kernel by the latest checkpoint; report on the variables."""
        try:
            undone = self.wake(deadline)
        except NoCheckpoint as exc:
            return Variables(hindrance=hindrance(str(exc)))
        except (KernelDied, OSError):
            return LOST
        return Variables(True, undone, self.hindrance)

    def fork(self, seconds: float) -> tuple[int, socket.socket]:
        """Make a copy of the present kernel the supervisor of a branch; return its number and its lifeline.

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
        """Order PID 1 to end a branch, in any state of its supervisor."""
        self._lifeline.send(EndBranch(number))

    def define(self, source: str, seconds: float) -> None:
        """Run internal code in the kernel, which defines names for user code and is not a cell.

        Raises:
            PreludeError: it failed.
        """
        if source and self.current:
            for output in self.current.execute(source, seconds, kind="definition"):
                if isinstance(output, (Error, TimedOut, Died)):
                    raise PreludeError(f"The prelude failed: {output.text}")

    def adopt(self, spec: SessionSpec) -> None:
        """Give the ready kernel to a session, with its host functions and definitions.

        Raises:
            PreludeError: the prelude failed.
        """
        self._spec, self.prelude = spec, spec.prelude
        self._calls.serve(spec)
        if self.current and spec.checkpoint:
            self.current.runs = self.runs
        self.define(spec.prelude, spec.limits.start_timeout)

    def drop(self) -> None:
        """Close the connection to the kernel."""
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
        """Connect to the kernel of this order, in place of the previous one; return its first message."""
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
        self.current = Kernel(channel, self._lifeline, limits, self._spec.isolation.memory, runs, self.background)
        self._calls.connect(calls, self._spec)
        return first


def hindrance(word: object) -> Hindrance:
    """Return the guest's code for the reason why no checkpoint was taken; '' if unknown."""
    return next((each for each in get_args(Hindrance) if each == word), "")


# The branches of one kernel, each with its own session, and the limit for a sandbox.


class BranchLike(Protocol):
    """The interface of a branch to its parent."""

    def kill(self, reason: str, cause: Cause) -> None:
        """End its code, and the code of its branches; its next run restores the variables."""
        ...

    def close(self) -> None:
        """End the branch, and its own branches."""
        ...


class BranchLimit:
    """Limits the branches of a sandbox to `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> None:
        """Count a new branch.

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
        """Count a closed branch."""
        with self._lock:
            self._taken -= 1


class KernelBranches:
    """The branches of one kernel. Thread-safe."""

    def __init__(self, room: BranchLimit) -> None:
        self.room = room
        self.had_any = False
        """Whether code may have run in one."""
        self._lock = threading.Lock()
        self._open: list[BranchLike] = []
        self._is_closed = False

    def add(self, branch: BranchLike) -> None:
        """Add an open branch; close it at once if `close` was called."""
        with self._lock:
            self._open.append(branch)
            is_late = self._is_closed
        if is_late:
            branch.close()

    def remove(self, branch: BranchLike) -> None:
        """Remove a closed branch; an unknown one is not an error."""
        with self._lock:
            self._open = [each for each in self._open if each is not branch]

    def kill(self, reason: str, cause: Cause) -> None:
        """End the code of all branches."""
        for branch in self._all():
            branch.kill(reason, cause)

    def close(self) -> None:
        """Close all branches, and any that are added later."""
        with self._lock:
            self._is_closed = True
        for branch in self._all():
            branch.close()

    def _all(self) -> list[BranchLike]:
        with self._lock:
            return list(self._open)


# The socket for a kernel's host calls: served at once, or kept for a later session.


class CallLine:
    """The socket for host calls of the present kernel. Call it with the session's lock."""

    def __init__(self) -> None:
        self._kept: socket.socket | None = None

    def connect(self, calls: socket.socket, spec: SessionSpec) -> None:
        """Serve the socket of a fresh kernel, keep it, or close it if no session will serve it."""
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


# Base of objects that have one kernel at a time: a running sandbox, or a branch.


class KernelHolder(ABC):
    """Operations on the present kernel of a sandbox or branch."""

    kernels: Kernels
    branches: KernelBranches
    """Those made of its kernel."""
    is_removed = False
    """True once it was ended from here."""

    @abstractmethod
    def use(self) -> AbstractContextManager[None]:
        """Continue a sandbox that was stopped as idle, and keep it running during the block."""

    @abstractmethod
    def start_kernel(self, patience: float) -> Kernel:
        """Start a kernel within `patience` seconds, and connect to it.

        Raises:
            KernelDied: it did not start.
        """

    @property
    def kernel(self) -> Kernel | None:
        """The present kernel; None once its connection is closed."""
        return self.kernels.current

    @property
    def runs(self) -> Runs:
        """The runs of its kernels."""
        return self.kernels.runs

    def go_back(self, run: int, patience: float) -> None:
        """Replace the live kernel by the checkpoint of this run, or by a fresh kernel for 0.

        Raises:
            NoCheckpoint: there is none; the kernel is unchanged.
            KernelDied: it did not start.
        """
        with self.use():
            if run:
                self.kernels.wake(time.monotonic() + patience, run)
            else:
                self.start_kernel(patience)

    def define(self, source: str, seconds: float) -> None:
        """Run internal code in the kernel. Errors as for `Kernels.define`."""
        with self.use():
            self.kernels.define(source, seconds)

    def keep_prelude(self, prelude: str) -> None:
        """Run this prelude in every later kernel."""
        self.kernels.prelude = prelude
