"""The jobs of a gateway: each does one client's work in a thread, and the event loop follows its log."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from agent_tools.agents.cancel import Cancel
from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.sandbox_queue import SandboxQueue, Ticket
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.requests.api_errors import ApiError, busy, revoked, stopped

LAST_WORDS = 5.0  # seconds in which an ended job may still notify its client
CANCEL_SECONDS = 1.0  # in which jobs learn that they are cancelled, before what they wait for is ended
Event = Mapping[str, Any]
_log = logging.getLogger(__name__)


class Job(ABC):
    """One client's work: it yields events, reports its failure, and releases its resources in `close`.

    Attributes:
        cancel: ends the work when set, from any thread.
        is_stopped: the work is ended because the gateway stops; set before `cancel`.
        failure: the error that ended the work, if one did.
        log: the events so far.
    """

    def __init__(self, log: EventLog, *, is_clients_key: bool = False) -> None:
        self.cancel = Cancel()
        self.is_stopped = False
        self.failure: ApiError | None = None
        self.log = log
        self._is_clients_key = is_clients_key

    @abstractmethod
    def events(self) -> Generator[Event, None, None]:
        """Do the work and yield its events. Any exception ends it."""

    @abstractmethod
    def failed(self, failure: ApiError) -> Iterator[Event]:
        """Yield the events that report a failure to the client."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the work."""

    def record(self, event: Event) -> None:
        """Append an event to the log."""
        self.log.append(event)

    def work(self) -> None:
        """Do the work to its end and record its events, including those of a failure. For a thread."""
        try:
            with closing(self.events()) as events:
                for event in events:
                    self.record(event)
        except Exception as exc:  # noqa: BLE001  (the outermost loop of a job)
            cause = client_error(exc, is_clients_key=self._is_clients_key)
            self.failure = stopped() if self.is_stopped else cause
            for event in self.failed(self.failure):
                self.record(event)
        finally:
            self.close()


@dataclass(frozen=True)
class JobSlot:
    """A job's slot among the active ones, and its ticket for a sandbox if it needs one."""

    owner: str
    ticket: Ticket | None


_Kind = TypeVar("_Kind", bound=Job)


class Jobs:
    """The active jobs: admitted, followed, abandoned, and ended with the gateway. For one event loop.

    `queue` is the one for sandboxes. When the gateway stops, `end_waits` is called to end the waits of jobs.

    Attributes:
        failed: called with the owner and the failure of each job that failed.
    """

    def __init__(
        self,
        config: GatewayConfig,
        pool: Executor,
        queue: SandboxQueue,
        end_waits: Callable[[], None] = lambda: None,
        may_use: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._config = config
        self._pool = pool
        self._queue = queue
        self._end_waits = end_waits
        self._most = config.most_of_key(config.max_responses)
        self._waiting: list[Ticket] = []  # of jobs, in the order in which they came
        self._held: Counter[str] = Counter()
        self._following: dict[Job, str] = {}  # with their owners
        self._may_use = may_use  # whether an owner may still ask: it changes before `end_of` is called
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None
        self.failed: Callable[[str, ApiError], None] = lambda *_: None

    @property
    def active(self) -> int:
        """The number of jobs that have entered, or wait for a sandbox."""
        return sum(self._held.values())

    async def enter(self, owner: str, *, needs_sandbox: bool) -> JobSlot:
        """Take a slot for one job, waiting for a sandbox if it needs one.

        Raises:
            ApiError: 429 or 503; 401, the owner's key has been revoked.
        """
        if self._closing:
            raise stopped()
        if self.active >= self._config.max_responses:
            raise busy(429, "Too many responses are running; try again later.", 5)
        if self._held[owner] >= self._most:
            raise busy(429, f"You have {self._most:,} active responses, the maximum for a key; try again later.", 5)
        self._held[owner] += 1
        try:
            ticket = await self._entered(owner) if needs_sandbox else None
        except BaseException:
            self._leave(owner)
            raise
        slot = JobSlot(owner, ticket)
        if not self._may_use(owner):
            self.leave(slot)
            raise revoked()
        return slot

    async def _entered(self, owner: str) -> Ticket:
        """Wait in the queue for sandboxes.

        Raises:
            ApiError: 429, too many jobs wait; 503, no sandbox became free in time.
        """
        timeout, ticket = self._config.queue_timeout, self._queue.enter(owner)
        if not ticket.done():
            self._make_room(ticket)
        self._waiting.append(ticket)
        try:
            await self._queue.wait(ticket, timeout)
        except NoSandbox as exc:
            raise busy(503, exc.message, timeout) from exc
        finally:
            self._waiting.remove(ticket)
        return ticket

    def _make_room(self, ticket: Ticket) -> None:
        """Refuse the last waiting job of the owner that has most, or this one if that would have no more."""
        waiting = [each for each in self._waiting if not each.done()]
        if len(waiting) < self._config.max_queue:
            return
        too_many = busy(429, "Too many requests wait for a sandbox; try again later.", self._config.queue_timeout)
        numbers = Counter(each.owner for each in waiting)
        longest, number = max(numbers.items(), key=lambda each: each[1], default=("", 0))
        if number <= numbers[ticket.owner] + 1:
            self._queue.leave(ticket)
            raise too_many
        self._queue.refuse([each for each in waiting if each.owner == longest][-1], too_many)

    def leave(self, slot: JobSlot) -> None:
        """Free a slot."""
        self._leave(slot.owner)
        if slot.ticket:
            self._queue.leave(slot.ticket)

    def _leave(self, owner: str) -> None:
        self._held -= Counter((owner,))  # which forgets owners without a slot

    def follow(self, job: Job, slot: JobSlot) -> None:
        """Start a job that has entered; it leaves at its end. End it if its key was revoked or the gateway stops."""
        self._following[job] = slot.owner
        job.is_stopped = self._closing is not None
        if job.is_stopped or not self._may_use(slot.owner):  # since it has entered
            self.abandon(job)
        self._pool.submit(copy_context().run, self._work, job, slot)  # with the id of its request, for the log

    def all_of(self, kind: type[_Kind]) -> list[_Kind]:
        """List the active jobs of one kind."""
        return [job for job in self._following if isinstance(job, kind)]

    def abandon(self, job: Job) -> None:
        """End a job whose client has disconnected."""
        self._loop.run_in_executor(None, job.cancel.set)

    def end_of(self, owners: frozenset[str]) -> None:
        """End the jobs of owners whose key was revoked, and reject their waiting jobs. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end_of, owners)

    def _end_of(self, owners: frozenset[str]) -> None:
        for job, owner in self._following.items():
            if owner in owners:
                self.abandon(job)
        for ticket in self._waiting:
            if ticket.owner in owners:
                self._queue.refuse(ticket, revoked())

    async def close(self) -> None:
        """Admit no more jobs, wait for active ones within the grace period, then end them. May be called again."""
        self._closing = self._closing or asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._queue.close(stopped())
        await self._quiet(self._config.shutdown_grace)
        jobs = list(self._following)
        for job in jobs:
            job.is_stopped = True
        ends = [asyncio.ensure_future(run_in_threadpool(job.cancel.set)) for job in jobs]  # none waits for another
        if ends:
            await asyncio.wait(ends, timeout=CANCEL_SECONDS)
        await run_in_threadpool(self._end_waits)
        await self._quiet(LAST_WORDS)
        await asyncio.gather(*ends, return_exceptions=True)

    async def _quiet(self, timeout: float) -> None:
        """Wait until no job is active, at most `timeout` seconds."""
        waiting = [asyncio.ensure_future(job.log.closed()) for job in self._following]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=timeout)
            for each in late:
                each.cancel()

    def _work(self, job: Job, slot: JobSlot) -> None:
        try:
            job.work()
        except Exception as exc:  # noqa: BLE001  (the end of a thread: nothing else would report it)
            _log.error("a job was not closed well: %s", type(exc).__name__)
        finally:
            if job.failure:
                self.failed(slot.owner, job.failure)
            self._end_soon(job, slot)

    def _end_soon(self, job: Job, slot: JobSlot) -> None:
        try:
            self._loop.call_soon_threadsafe(partial(self._end, job, slot))
        except RuntimeError:  # the loop is closed, and with it all slots
            job.log.close()

    def _end(self, job: Job, slot: JobSlot) -> None:
        self.leave(slot)
        self._following.pop(job, None)
        job.log.close()  # last, so that a reader that waited for the end finds the slot free
