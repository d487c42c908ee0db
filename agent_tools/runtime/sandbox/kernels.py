"""The kernels of one sandbox, one at a time: a fresh kernel, or one from a checkpoint."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, get_args

from agent_tools.errors import KernelDied, PreludeError
from agent_tools.guest.wire.words import Branch, EndBranch, FreshBranch, Kill, SocketOrder, Start, Wake
from agent_tools.results.execution import Died, Error, TimedOut
from agent_tools.results.variables import LOST, Hindrance, Variables
from agent_tools.runtime.kernel.channel import KernelChannel, NoCheckpoint
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.kernel.output_limits import BackgroundText
from agent_tools.runtime.kernel.protocol import KernelMessage
from agent_tools.runtime.kernel.run_numbers import RunNumbers
from agent_tools.runtime.sandbox.call_line import CallLine
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.runtime.transport.transport import Transport


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
        self.runs = RunNumbers()
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
            PreludeError: the prelude failed, and the kernel is ended.
        """
        self.drop()
        self.runs.start_anew()
        self._missing = None
        self._connect(Start(next(self._orders)), deadline)
        self._begin(deadline)
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
            try:
                self._begin(deadline)
            except PreludeError as exc:
                raise KernelDied(str(exc)) from exc
        self.hindrance = hindrance(news.get("skipped"))
        return undone

    def _woken(self, deadline: float, run: int | None) -> Mapping[str, Any]:
        """Continue a checkpoint; return its report about itself. Arguments and errors as for `wake`."""
        order = Wake(next(self._orders), self.runs.latest if run is None else run)
        if run is None:
            self._lifeline.send(Kill())  # one that was woken too late before
        try:
            return self._connect(order, deadline).content
        except NoCheckpoint as exc:
            self._missing = exc if run is None else self._missing
            raise
        except KernelDied:
            if run is not None and self.current:
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
        for number, refused in opened[:-1] if is_asked else opened:
            refused.close()
            self.end_branch(number)  # its answer may have come late, or not at all
        if not is_asked:
            raise NoCheckpoint("")
        return opened[-1]

    def open_branch(self) -> tuple[int, socket.socket]:
        """Make a fork of PID 1 the supervisor of a branch with fresh kernels; return its number and its lifeline.

        Raises:
            KernelDied: the sandbox takes no orders.
        """
        order = FreshBranch(next(self._orders))
        sockets = self._transport.open(order, self._lifeline)
        if sockets is None:
            raise KernelDied("the sandbox takes no orders")
        return order.number, sockets[0]

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

    def _begin(self, deadline: float) -> None:
        """Run the prelude in a new kernel; end one in which it fails, in which code would miss its definitions."""
        try:
            self.define(self.prelude, deadline - time.monotonic())
        except PreludeError as exc:
            self._refused(str(exc))
            raise

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
