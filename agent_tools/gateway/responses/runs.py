"""The responses under way here: started, followed, cancelled, and ended with the gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool

from agent_tools.agents.cancel import Cancel
from agent_tools.gateway.jobs.admission import Admission
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.requests.failures import busy, stopped
from agent_tools.gateway.responses.plan import Planner
from agent_tools.gateway.responses.request import Request
from agent_tools.gateway.responses.run import Run
from agent_tools.gateway.services import Services

LAST_WORDS = 5.0  # seconds that what is ended has to say so


class Followed(Protocol):
    """A turn in a thread: a response's, or a chat completion's."""

    cancel: Cancel
    is_stopped: bool  # because the gateway ends; set before `cancel`
    log: EventLog
    on_end: Callable[[], None]

    def work(self) -> None:
        """Go to the end, whatever happens."""
        ...


_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Place:
    """A turn's place among those under way, and with a sandbox if it needs one."""

    owner: str
    needs_sandbox: bool


class Runs:
    """For one event loop. Everything that takes long happens in the services' threads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        config = services.config
        share = config.key_share if len(config.api_keys) > 1 else 1.0
        places, self._most = (max(1, int(most * share)) for most in (config.max_sandboxes, config.max_responses))
        queue, patience = config.max_queue, config.queue_timeout
        self.admission = Admission(config.max_sandboxes, queue, patience, "a sandbox", places)
        self._held: Counter[str] = Counter()
        self._runs: dict[str, Run] = {}
        self._following: set[Followed] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closing = False

    async def start(self, request: Request, owner: str, headers: Mapping[str, str]) -> Run:
        """Start a response.

        Raises:
            ApiError: it cannot be made, or not now.
        """
        place = await self.enter(owner, needs_sandbox=request.tools.container is not None)
        try:
            planner = Planner(self._services, owner, request)
            plan = await run_in_threadpool(planner.plan, self._services.upstream.key(headers))
            log = EventLog(self._services.config.max_response_bytes)
            run = await run_in_threadpool(Run, self._services, plan, log)
            if request.background:
                await run_in_threadpool(run.save_start)
        except BaseException:
            self.leave(place)
            raise
        self._runs[run.id] = run
        self.follow(run, place)
        return run

    def follow(self, run: Followed, place: Place) -> None:
        """Start a run that has entered; it leaves at its end."""
        self._following.add(run)
        run.on_end = lambda: self._call_soon(lambda: self._ended(run, place))
        self._services.pool.submit(run.work)

    @property
    def under_way(self) -> int:
        """Turns that have entered, or wait for a sandbox."""
        return sum(self._held.values())

    async def enter(self, owner: str, *, needs_sandbox: bool) -> Place:
        """Take a place for one turn.

        Raises:
            ApiError: 429 or 503.
        """
        if self._is_closing:
            raise stopped()
        if self.under_way >= self._services.config.max_responses:
            raise busy(429, "Too many responses are under way; try again later.", 5)
        if self._held[owner] >= self._most:
            raise busy(429, f"You have {self._most:,} responses under way, as many as you may; try again later.", 5)
        self._held[owner] += 1
        try:
            if needs_sandbox:
                await self.admission.enter(owner)
        except BaseException:
            self._held[owner] -= 1
            raise
        return Place(owner, needs_sandbox)

    def leave(self, place: Place) -> None:
        """Give the place back."""
        self._held[place.owner] -= 1
        if place.needs_sandbox:
            self.admission.leave(place.owner)

    def find(self, id_: str, owner: str) -> Run | None:
        """A response of this owner that is under way here."""
        run = self._runs.get(id_)
        return run if run and run.plan.owner == owner else None

    def under_way_of(self, kind: type[_Kind]) -> list[_Kind]:
        """All turns of one kind that are under way."""
        return [run for run in self._following if isinstance(run, kind)]

    def abandon(self, run: Followed) -> None:
        """End a response that nobody waits for."""
        self._loop.run_in_executor(None, run.cancel.set)

    async def close(self) -> None:
        """Start no more, let all end within the grace there is, then end them."""
        self._is_closing = True
        self.admission.close(stopped())
        await self._quiet(self._services.config.shutdown_grace)
        for run in list(self._following):
            run.is_stopped = True
            await run_in_threadpool(run.cancel.set)
        await self._quiet(LAST_WORDS)

    async def _quiet(self, patience: float) -> None:
        """Wait until nothing is under way, for so many seconds at most."""
        waiting = [asyncio.ensure_future(run.log.closed()) for run in self._following]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=patience)
            for each in late:
                each.cancel()

    def _ended(self, run: Followed, place: Place) -> None:
        self.leave(place)
        self._following.discard(run)
        if isinstance(run, Run):
            self._runs.pop(run.id, None)

    def _call_soon(self, call: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed, and with it all places
            return
