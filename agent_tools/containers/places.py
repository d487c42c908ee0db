"""The places of sandboxes: `max_sandboxes` containers are live at once; one that is called takes another's place.

Theory of operation
    A container that is called becomes live. If all places are taken, the one that was unused for longest is parked: its
    variables are saved and its sandbox is closed. That, and bringing back what was kept of the container that is
    called, happens in a thread, so that whoever called need not wait while a model still writes; `woken` tells when it
    is done. A container that is called while it is being parked waits for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.kept_variables import KeptVariables
from agent_tools.errors import AgentToolsError
from agent_tools.tools.code_interpreter import CodeInterpreter


@dataclass(eq=False)
class LiveContainer:
    """A container with a place: its next call starts a sandbox if there is none.

    `woken` is there once it may be used; its result is what a model is told of that.
    """

    interpreter: CodeInterpreter
    holders: int = 0
    used_at: float = 0.0
    saved_at: float = 0.0
    has_changed: bool = False
    woken: Future[str] = field(default_factory=Future)


class Owner(Protocol):
    """The owner of containers, as their places know it."""

    clock: Callable[[], float]

    def was_parked(self, id_: str) -> None:
        """Note that a container has given its place up."""

    def tidy(self, id_: str, interpreter: CodeInterpreter) -> None:
        """Close the interpreter of a container that had lost its place while it was in use."""


class Places:
    """Hands them out. Thread-safe.

    Attributes:
        parked: the number of sandboxes that made room for others, since the start.
    """

    def __init__(self, config: ContainersConfig, variables: KeptVariables, owner: Owner) -> None:
        self._config = config
        self._variables = variables
        self._owner = owner
        self._clock = owner.clock
        self._change = threading.Condition()
        self._live: dict[str, LiveContainer] = {}
        self._parking: set[str] = set()
        self.parked = 0
        self._threads = ThreadPoolExecutor(config.max_sandboxes, "gateway-start")

    def take(self, id_: str, called: Callable[[], tuple[Callable[[], CodeInterpreter], bool]]) -> LiveContainer:
        """Hold a container, which keeps its place until it was released as often.

        `called` raises if the container is over; it returns what makes an interpreter, and whether code has run before.

        Raises:
            NoSandbox: every place is held.
        """
        with self._change:  # which the end of a container takes, too
            self._change.wait_for(lambda: id_ not in self._parking)
            make, has_run = called()
            live = self._live.get(id_)
            if live is None:
                victim = self._victim()
                live = self._live[id_] = LiveContainer(make(), saved_at=self._clock())
                if not self.soon(partial(self._wake, id_, live, victim, has_run=has_run)):
                    live.woken.set_result("")
            live.holders += 1
            return live

    def release(self, id_: str, live: LiveContainer) -> None:
        """Let go of a container."""
        with self._change:
            live.holders -= 1
            live.used_at = self._clock()
            live.has_changed = True
        self._tidy_if_over(id_, live)

    def start(self, id_: str, interpreter: CodeInterpreter) -> None:
        """Start the sandbox of a held interpreter, in a thread. A failure comes again at the run, which tells of it."""
        with self._change:
            live = self._live.get(id_)
        if live is None or live.interpreter is not interpreter:  # it was closed before it could be started
            return

        def started() -> None:
            live.woken.result()
            with suppress(AgentToolsError):
                interpreter.start()
            self._tidy_if_over(id_, live)

        self.soon(started)

    def soon(self, work: Callable[[], None]) -> bool:
        """Do something in a thread; return False if all is being closed."""
        try:
            self._threads.submit(work)
        except RuntimeError:
            return False
        return True

    def _tidy_if_over(self, id_: str, live: LiveContainer) -> None:
        with self._change:
            is_over = self._live.get(id_) is not live and not live.holders and id_ not in self._parking
        if is_over:
            self._owner.tidy(id_, live.interpreter)

    def is_held(self, id_: str) -> bool:
        """Return whether a container is in use, or on its way to be parked."""
        with self._change:
            live = self._live.get(id_)
            return id_ in self._parking or (live is not None and live.holders > 0)

    def end(self, id_: str, begin: Callable[[], None], *, even_if_held: bool) -> bool:
        """Take a container's place away and close its sandbox, after `begin`; return False if it is held."""
        with self._change:
            self._change.wait_for(lambda: id_ not in self._parking)
            live = self._live.get(id_)
            if live and live.holders and not even_if_held:
                return False
            begin()
            self._live.pop(id_, None)
        if live:
            live.interpreter.close()
        return True

    def running(self) -> Mapping[str, bool]:
        """Return the containers that have a sandbox, each with True while it is held."""
        with self._change:
            return {id_: live.holders > 0 for id_, live in self._live.items() if live.interpreter.sandbox}

    def save_due(self) -> int:
        """Save the variables of those in use whose last save is `save_every` seconds old; return how many failed."""
        every = self._config.save_every
        if not every:
            return 0
        with self._change:
            now, lives = self._clock(), list(self._live.items())
        return sum(not self._saved(id_, live, now) for id_, live in lives if now - live.saved_at >= every)

    def close(self) -> None:
        """Park all that are live, at once, within `park_timeout`; those still held, and those left, are only closed."""
        with self._change:
            lives, self._live = self._live, {}
            self._parking |= lives.keys()
        parks = {self._threads.submit(self._park, id_, live): live for id_, live in lives.items()}
        _, late = wait(parks, self._config.park_timeout)
        with ThreadPoolExecutor(len(late) or 1, "gateway-stop") as closing:
            for each in late:  # its saving ends, since what it saves is gone
                closing.submit(parks[each].interpreter.close)
        self._threads.shutdown()

    def _victim(self) -> tuple[str, LiveContainer] | None:
        """Take the place of the container that was unused for longest, None if there is one free; with the lock."""
        if len(self._live) + len(self._parking) < self._config.max_sandboxes:
            return None
        idle = [(live.used_at, id_) for id_, live in self._live.items() if not live.holders and live.woken.done()]
        if not idle:
            raise NoSandbox("Every sandbox is in use; try again later.")
        _, id_ = min(idle)
        self._parking.add(id_)
        self.parked += 1
        return id_, self._live.pop(id_)

    def _wake(self, id_: str, live: LiveContainer, victim: tuple[str, LiveContainer] | None, *, has_run: bool) -> None:
        """Make room for a container's sandbox, and bring its variables back."""
        note = ""
        try:
            if victim:
                self._park(*victim)
            if has_run:
                note = self._variables.bring_back(id_, live.interpreter)
        finally:
            live.woken.set_result(note)
            self._tidy_if_over(id_, live)

    def _park(self, id_: str, live: LiveContainer) -> None:
        """Save the variables of a container, and close its sandbox."""
        live.woken.result()  # which would start it again
        try:
            if self._config.keep_variables and not live.holders and live.interpreter.sandbox:
                self._variables.keep(id_, live.interpreter, "parked")
        finally:
            live.interpreter.close()
            with self._change:
                self._parking.discard(id_)
                self._change.notify_all()
        with suppress(AgentToolsError):
            self._owner.was_parked(id_)

    def _saved(self, id_: str, live: LiveContainer, now: float) -> bool:
        """Save the variables of a container if they may have changed, and no code runs; return False if that failed."""
        interpreter = live.interpreter
        has_changed = live.holders or live.has_changed
        if not has_changed or not live.woken.done() or not interpreter.sandbox or interpreter.as_sandbox.is_busy:
            return True
        live.has_changed = False
        live.saved_at = now
        return self._variables.keep(id_, interpreter, "saved")
