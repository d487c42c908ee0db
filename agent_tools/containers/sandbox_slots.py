"""Slots for sandboxes: a limit on those that are kept, and which one makes room. sandbox_queue.py has who runs code.

Theory of operation
    A container that is called becomes live, and stays live while there is room (`SlotLimits`), so that its next call
    finds its variables. If there is no room, the container unused for longest is parked: its variables are saved and
    its sandbox is closed. Parking, and loading the saved variables of the called container, happen in a thread, so that
    the caller need not wait while a model still writes; `woken` is set when they are done.

    Only one thread at a time takes, parks or ends a container; others wait (`ContainerLocks`). So the lock of all slots
    is held only for moments, never during a query of the rows.

    A container is live in one process only: its owner acquires the lease first, and releases it at the end
    (leases.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial
from typing import Protocol

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.container_locks import ContainerLocks
from agent_tools.containers.failures import ContainerExpired, NoSandbox
from agent_tools.containers.kept_variables import KeptVariables
from agent_tools.containers.live_container import LiveContainer, TakenSandbox
from agent_tools.containers.slot_limits import SlotLimits
from agent_tools.errors import AgentToolsError
from agent_tools.tools.tool_sandbox import ToolSandbox


class SlotOwner(Protocol):
    """The callbacks from `Slots` to the owner of the containers."""

    clock: Callable[[], float]

    def sandbox_gone(self, id_: str) -> None:
        """Record that a container has no sandbox any more; other processes may take it. Raises nothing."""

    def was_parked(self, id_: str) -> None:
        """Count the saved variables of a container."""

    def tidy(self, id_: str, sandbox: ToolSandbox) -> None:
        """Close the sandbox of a container that had lost its slot while it was in use."""


class Slots:
    """Assigns slots to containers. Thread-safe.

    Attributes:
        parked: the number of sandboxes that made room for others, since the start.
    """

    def __init__(self, config: ContainersConfig, variables: KeptVariables, owner: SlotOwner) -> None:
        self.room = SlotLimits(config)
        self._config = config
        self._variables = variables
        self._owner = owner
        self._clock = owner.clock
        self._locks = ContainerLocks()
        self._change = self._locks.lock
        self._live: dict[str, LiveContainer] = {}
        self._relieving = 0
        self.parked = 0
        self._threads = ThreadPoolExecutor(max(self.room.kept, 1), "gateway-start")

    def take_sandbox(self, id_: str, called: Callable[[], TakenSandbox | None]) -> LiveContainer | None:
        """Acquire a container, which keeps its slot until each use is released; None if another process just took it.

        `called` acquires its lease, and raises if the container has ended.

        Raises:
            NoSandbox: all sandboxes that may be kept are in use.
        """
        with self._locks.alone(id_, self._check_room):
            taken = called()
            if taken is None:
                return None
            with self._change:
                live = self._live.get(id_)
                if live and live.generation == taken.generation:
                    live.holders += 1
                    return live
            try:
                made = taken.make()  # this may fail, so it comes before room is made
            except BaseException:
                self._owner.sandbox_gone(id_)
                raise
            live = LiveContainer(made, taken.generation, holders=1, saved_at=self._clock())
            return self._entered(id_, live, taken.has_run)

    def acquire_if_running(self, id_: str) -> LiveContainer | None:
        """Acquire a container that has a sandbox now; None if it has none."""
        with self._change:
            live = self._live.get(id_)
            if live is None or id_ in self._locks or not live.woken.done() or not live.sandbox.container:
                return None
            live.holders += 1
            return live

    def await_release(self, seconds: float) -> None:
        """Wait until a slot may be free, at most `seconds`."""
        with self._change:
            self._change.wait(seconds)

    def _entered(self, id_: str, live: LiveContainer, has_run: bool) -> LiveContainer:
        """Add a container to the live ones, in place of an entry that lost its lease, if there is one."""
        with self._change:
            stale = self._live.get(id_)
            victims = self._victims(0 if stale else 1)
            self._live[id_] = live
        if not self.soon(partial(self._wake, id_, live, victims, stale, has_run=has_run)):
            live.woken.set_result("")
        return live

    def _check_room(self, id_: str) -> None:
        """Check that one more container may be acquired, live already or not; with the lock.

        Raises:
            NoSandbox: the limit is reached.
        """
        staying = {other for other, live in self._live.items() if not live.is_idle} | self._locks.taken
        if id_ not in self._live and len(staying) >= self.room.kept:
            raise NoSandbox("Every sandbox is in use; try again later.")

    def release(self, id_: str, live: LiveContainer, *, is_use: bool = True) -> None:
        """Release a container after `take_sandbox` or `acquire_if_running`. `is_use`: this counts as use."""
        with self._change:
            live.holders -= 1
            if is_use:
                live.used_at = self._clock()
                live.has_changed = True
            self._change.notify_all()
        self._tidy_if_over(id_, live)
        self.relieve()

    def pin(self, id_: str, rank: int) -> LiveContainer:
        """Keep an acquired container live after its release, while there is room; see `pins`.

        Raises:
            ContainerExpired: the container was deleted in the meantime.
        """
        with self._change:
            live = self._live.get(id_)
            if live is None:
                raise ContainerExpired()
            live.pins.append(rank)
            return live

    def touch(self, id_: str) -> None:
        """Record that something in a container is used now."""
        with self._change:
            if live := self._live.get(id_):
                live.used_at = self._clock()

    def unpin(self, live: LiveContainer, rank: int) -> None:
        """End one `pin` of a container."""
        with self._change:
            live.pins.remove(rank)

    def start(self, id_: str, sandbox: ToolSandbox) -> Future[None] | None:
        """Start an acquired sandbox, in a thread; None if it was closed before.

        A failure is not raised here: it occurs again at the run, which raises it.
        """
        with self._change:
            live = self._live.get(id_)
        if live is None or live.sandbox is not sandbox:  # it was closed before it could be started
            return None

        def started() -> None:
            wait([live.woken])
            with suppress(AgentToolsError):
                sandbox.start()
            self._tidy_if_over(id_, live)

        return self.soon(started)

    def soon(self, work: Callable[[], None]) -> Future[None] | None:
        """Run a function in a thread; return None if everything is being closed."""
        try:
            return self._threads.submit(work)
        except RuntimeError:
            return None

    def _surely(self, work: Callable[[], None]) -> None:
        """Run a function in a thread, or in this one if everything is being closed."""
        if not self.soon(work):
            work()

    def _tidy_if_over(self, id_: str, live: LiveContainer) -> None:
        with self._change:
            is_over = self._live.get(id_) is not live and not live.holders and not live.is_parked
        if is_over:
            self._owner.tidy(id_, live.sandbox)

    def is_in_use(self, id_: str) -> bool:
        """Return whether a container is in use, or being taken, parked or ended."""
        with self._change:
            live = self._live.get(id_)
            return id_ in self._locks or (live is not None and live.holders > 0)

    def generations(self) -> dict[str, int]:
        """Return the containers that are live, each with the generation in which it was taken."""
        with self._change:
            return {id_: live.generation for id_, live in self._live.items()}

    def end(self, id_: str, begin: Callable[[], bool], *, even_if_in_use: bool) -> bool:
        """Remove a container from its slot and close its sandbox, after `begin`; return False if it is in use.

        `even_if_in_use` ends it in any case, even if `begin` finds that it has ended.
        """
        with self._locks.alone(id_):
            with self._change:
                live = self._live.get(id_)
            if live and live.holders and not even_if_in_use:
                return False
            if not begin() and not even_if_in_use:
                return False
            with self._change:
                live = self._live.pop(id_, None)
        if live:
            live.sandbox.close()
        return True

    def drop(self, id_: str, generation: int) -> None:
        """Close the sandbox that a container got in this generation, even if it is in use; nothing is saved.

        Nobody takes the container before its owner knows that it has no sandbox.
        """
        with self._change:
            self._change.wait_for(lambda: id_ not in self._locks or id_ not in self._live.keys() | self._locks.taken)
            live = self._live.get(id_)
            if id_ in self._locks or (live and live.generation != generation):  # whoever parks it tells its owner
                return
            self._locks.begin([id_])
            self._live.pop(id_, None)
        try:
            if live:
                live.sandbox.close()
        finally:
            self._owner.sandbox_gone(id_)
            self._locks.end(id_)

    def running(self) -> Mapping[str, bool]:
        """Return the containers that have a sandbox, each with True while it is in use."""
        with self._change:
            return {id_: live.holders > 0 for id_, live in self._live.items() if live.sandbox.container}

    def save_due(self) -> int:
        """Save the variables of containers last saved `save_every` seconds ago; return the number of failures."""
        every = self._config.save_every
        if not every:
            return 0
        with self._change:
            now, lives = self._clock(), list(self._live.items())
        return sum(not self._saved(id_, live, now) for id_, live in lives if now - live.saved_at >= every)

    def relieve(self) -> None:
        """Park the containers beyond the limits, in a thread; repeat while memory is short."""
        with self._change:
            victims = [] if self._relieving else self._victims(0)
            self._relieving += len(victims)
        for victim in victims:
            self._surely(partial(self._relieve_of, victim))

    def _relieve_of(self, victim: tuple[str, LiveContainer]) -> None:
        try:
            self._park(*victim)
        finally:
            with self._change:
                self._relieving -= 1
        self.relieve()

    def close(self) -> None:
        """Park all live containers at once, within `park_timeout`; close those in use and the rest without saving."""
        with self._change:
            lives = self._chosen(list(self._live))
        parks = {self._threads.submit(self._park, *each): each[1] for each in lives}
        _, late = wait(parks, self._config.park_timeout)
        with ThreadPoolExecutor(len(late) or 1, "gateway-stop") as closing:
            for each in late:  # this ends its saving, since its variables are gone
                closing.submit(parks[each].sandbox.close)
        self._threads.shutdown()

    def _victims(self, coming: int) -> list[tuple[str, LiveContainer]]:
        """Choose containers to park so that others have room, the longest unused first; with the lock."""
        surplus = self.room.surplus(len(self._live) + coming)
        found = [
            (max(live.pins, default=0), live.used_at, id_)
            for id_, live in self._live.items()
            if live.is_idle and id_ not in self._locks
        ]
        victims = self._chosen([id_ for _, _, id_ in sorted(found)[:surplus]])
        self.parked += len(victims)
        return victims

    def _chosen(self, ids: Sequence[str]) -> list[tuple[str, LiveContainer]]:
        """Remove containers to be parked from their slots; with the lock."""
        self._locks.begin(ids)
        chosen = [(id_, self._live.pop(id_)) for id_ in ids if id_ in self._live]
        for _, live in chosen:
            live.is_parked = True
        return chosen

    def _wake(
        self,
        id_: str,
        live: LiveContainer,
        victims: Sequence[tuple[str, LiveContainer]],
        stale: LiveContainer | None,
        *,
        has_run: bool,
    ) -> None:
        """Make room for a container's sandbox, and load its variables."""
        note = ""
        try:
            with ExitStack() as parks:  # each is parked, even if another fails
                if stale:
                    parks.callback(stale.sandbox.close)
                for victim in victims:
                    parks.callback(self._park, *victim)
            if has_run:
                note = self._variables.bring_back(id_, live.sandbox)
        finally:
            live.woken.set_result(note)
            self._tidy_if_over(id_, live)

    def _park(self, id_: str, live: LiveContainer) -> None:
        """Save the variables of a container, and close its sandbox."""
        wait([live.woken])  # a save would start it again
        try:
            if self._config.keep_variables and not live.holders and live.sandbox.is_alive:
                self._variables.keep(id_, live.sandbox, "parked")
        finally:
            try:
                live.sandbox.close()
            finally:  # else all that wait for the container wait for ever
                self._owner.sandbox_gone(id_)
                self._locks.end(id_)
        with suppress(AgentToolsError):
            self._owner.was_parked(id_)

    def _saved(self, id_: str, live: LiveContainer, now: float) -> bool:
        """Save the variables of a container if they may have changed, and no code runs; return False if that failed."""
        sandbox = live.sandbox
        has_changed = live.holders or live.has_changed
        if not has_changed or not live.woken.done() or not sandbox.is_alive or sandbox.is_busy:
            return True
        live.has_changed = False
        live.saved_at = now
        return self._variables.keep(id_, sandbox, "saved")
