"""The services of a gateway, built in order and released in reverse."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_tools.bodies.connections import InProgress
from agent_tools.bodies.sign_on import SignOn
from agent_tools.containers.containers import Containers
from agent_tools.containers.leases import ContainerLeases
from agent_tools.containers.records import ContainerRecord, Record
from agent_tools.containers.rows import Before
from agent_tools.containers.sweep import failures
from agent_tools.gateway.background import BackgroundResponses
from agent_tools.gateway.chunked import ChunkedUploads
from agent_tools.gateway.compute_queue import ComputeQueue
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.recent_fields import RecentFields
from agent_tools.gateway.conversations.recognised import RecognisedConversations
from agent_tools.gateway.conversations.stored import StoredConversations
from agent_tools.gateway.data_dir import prepare_data_dir
from agent_tools.gateway.files import ContainerFiles, Uploads
from agent_tools.gateway.membership import BEAT_EVERY, GatewayMembership
from agent_tools.gateway.named_keys import READ_EVERY, NamedKeys
from agent_tools.gateway.reasoning_cipher import ReasoningCipher
from agent_tools.gateway.recent_failures import RecentFailures
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.requests.api_errors import ApiError, busy
from agent_tools.gateway.requests.auth import RequestKeys
from agent_tools.gateway.requests.body import DecompressionBudget
from agent_tools.gateway.requests.rate_limit import Rates
from agent_tools.gateway.skills import UploadedSkills, sweep_copies
from agent_tools.gateway.store.records import (
    StoredCall,
    StoredEvents,
    StoredFingerprint,
    StoredItem,
    StoredResponse,
    UsageRow,
)
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.telemetry import Metrics
from agent_tools.gateway.upstream import Upstream
from agent_tools.gateway.usage import FLUSH_EVERY, KEPT_SECONDS, UsageMeter
from agent_tools.sandbox.audit import RunEnd
from agent_tools.tracing import configured_provider

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

SWEEP_EVERY = 15.0  # seconds
SAVE_LOOKS = 4  # at variables that may be due, in the time after which they are
MAX_KEY_AGE = 300.0  # seconds that named keys are accepted while the database, which may have revoked them, fails
TEND_EVERY = 0.5  # seconds between two looks at what other gateways wait for, and at what was revoked
FAILED = frozenset(("timed_out", "died", "refused"))
"""Outcomes of runs that an operator sees; an error of the code is none of them."""
_FORGOTTEN: tuple[type[Record], ...] = (
    StoredResponse,
    StoredItem,
    StoredCall,
    StoredEvents,
    StoredFingerprint,
)  # after `retention`
_log = logging.getLogger(__name__)


class Services:
    """The services of a gateway, made at its start; `close` ends them all and removes every sandbox.

    Attributes:
        compute: the order in which threads that make answers compute.
        failures: the last failures, for the operator.
        end_jobs_of: ends the jobs of these owners; set by the owner of the jobs.
        sweep_failures: parts of sweeps that failed since the start; a container whose files would not go is one.
    """

    def __init__(self, config: GatewayConfig, runtime: Runtime, tracing: Any = None) -> None:
        self.config = config
        self.runtime = runtime
        prepare_data_dir(config.data_dir)
        self.sweep_failures = 0
        self.compute = ComputeQueue()
        self.failures = RecentFailures()
        self._revoked: set[str] = set()  # owners whose containers are still to be stopped
        self._volume_names: Mapping[str, tuple[str, ...] | None] = {}  # at the last reading of keys
        self.end_jobs_of: Callable[[frozenset[str]], None] = lambda _: None
        with ExitStack() as undo:
            self._join_others(undo)
            self._let_in()
            self._have_containers(undo)
            self.tracing = tracing or configured_provider()
            if self.tracing:
                undo.callback(self.tracing.shutdown)
            self._count()
            self._repeat(undo, self.usage.flush, FLUSH_EVERY)
            self.upstream = Upstream(config, self.compute.waiting)
            self.mcp_servers = AllowedServers.of(config)
            self.pool = ThreadPoolExecutor(config.max_responses, "gateway-turn")
            undo.callback(self.pool.shutdown)
            self._repeat(undo, self.sweep, SWEEP_EVERY)
            if config.save_every:
                self._repeat(undo, self._save, min(SWEEP_EVERY, config.save_every / SAVE_LOOKS))
            self._repeat(undo, self._drop_taken_over, TEND_EVERY)
            if config.named_keys:
                self._repeat(undo, self._stop_revoked, TEND_EVERY)
                self._repeat(undo, self._read_keys, READ_EVERY)
            self._undo = undo.pop_all()

    def _join_others(self, undo: ExitStack) -> None:
        """Open the store, and join the gateways that share it."""
        config = self.config
        self.store = Store(config.database_url, config.database_timeout, self.compute)
        undo.callback(self.store.close)
        self.membership = GatewayMembership(config, self.store)
        self.membership.join()
        undo.callback(failures, self.membership.leave)
        self._repeat(
            undo, self.membership.beat, BEAT_EVERY
        )  # until all is closed: what is being saved is not for others yet
        self.background = BackgroundResponses(self.store, self.membership.id, self.membership.is_alive)

    def _let_in(self) -> None:
        """Make the services that requests need first: keys, and limits of bodies."""
        config = self.config
        self.keys = RequestKeys(
            config.api_keys,
            with_named=config.named_keys,
            max_age=MAX_KEY_AGE,
            sign_on=SignOn(config, config.oidc_groups) if config.oidc_issuer else None,
            with_groups=bool(config.oidc_groups),
        )
        named = NamedKeys(self.store)
        if config.named_keys:
            named.read_into(self.keys)
        elif any(row.revoked_at is None for row in named.all()):
            _log.warning("the keys of `agent-tools keys` do not count, since named_keys is off: --set named_keys=true")
        self.rates = Rates(config.max_requests_per_minute)
        most = config.max_connections
        too_many = partial(busy, 429, "Your key has too many requests in progress; end some, or try again later.", 5)
        self.in_progress = InProgress(most, config.most_of_key(most), too_many)
        most = config.max_unpacked_bytes
        self.decompression_budget = DecompressionBudget(most, config.most_of_key(most))

    def _have_containers(self, undo: ExitStack) -> None:
        """Make the services for containers and files, and for finding their conversations."""
        self.usage = UsageMeter(self.store, self.keys)
        undo.callback(failures, self.usage.flush)  # once all that is used has ended
        config, leases = self.config, ContainerLeases(self.store, self.membership.id, self.membership.name_of)
        self.containers = Containers(config, self.store, self.runtime, leases=leases)
        undo.callback(self.runtime.settle)  # the engine removes sandboxes beside what goes on
        undo.callback(self.containers.close)
        self.containers.name_of, self.containers.user_of = self.keys.name_of, self.keys.user_of
        self.containers.most_of = lambda owner: self.keys.max_containers(owner, config.max_containers)
        self.containers.may_use = self.keys.has
        self.containers.volumes_of = lambda owner: self.keys.volumes(owner, config.volumes)
        self.shares = self.containers.shares
        self.conversations = RecognisedConversations(config, self.store)
        self.stored_conversations = StoredConversations(config, self.store, self.shares)
        self.recent_fields = RecentFields()
        self.reasoning_cipher = ReasoningCipher(config.data_dir)
        self.uploads = Uploads(self.containers, self.store)
        self.chunked = ChunkedUploads(config, self.shares, self.uploads)
        self.shares.pending = self.chunked.pending_bytes
        self.files = ContainerFiles(self.containers, self.store, self.uploads)
        self.skills = UploadedSkills(config, self.store, self.uploads)

    def _count(self) -> None:
        """Make the metrics, and count what is used."""
        slots = self.containers.slots
        growing = {
            "agent_tools_sweep_failures": lambda: self.sweep_failures,
            "agent_tools_store_failures": lambda: self.store.failures,
            "agent_tools_parked": lambda: slots.parked,
        }
        self.metrics = Metrics(self.containers.running, growing, lambda: self.runtime.pools)
        self.containers.queue.waited = self.metrics.queue_seconds.observe
        self.containers.ended = self._ended

    def _ended(self, container: ContainerRecord, names: Mapping[str, str], run: RunEnd) -> None:
        if run.outcome != "refused":
            self.usage.ran(container, names, run)
            self.metrics.ran(names["key"], run)
        if run.outcome in FAILED:
            self.failures.record(run.outcome, run.reason, **names, container=container.id)

    def job_failed(self, owner: str, failure: ApiError) -> None:
        """Note why a job failed."""
        self.failures.refused(failure, self.keys.name_of(owner), self.keys.user_of(owner))

    def close(self) -> None:
        """Release everything but the connections to the upstream, which their loop closes."""
        self._undo.close()

    def sweep(self) -> int:
        """Expire and delete everything that is due; return the number of failed parts.

        A failed part, such as with a database that is away for a while, is left to the next sweep.
        """
        parts: list[Callable[[], int | None]] = [self.containers.sweep, self.uploads.sweep, self.background.sweep]
        parts += [self.chunked.sweep, self.recent_fields.sweep, partial(sweep_copies, self.config, self.store)]
        parts += [self.conversations.record_again, self.stored_conversations.sweep]
        parts += [partial(self._forget_old, kind, self.config.retention) for kind in _FORGOTTEN]
        parts.append(partial(self._forget_old, UsageRow, KEPT_SECONDS))
        failed = sum(failures(part) for part in parts)
        self.sweep_failures += failed
        return failed

    def _save(self) -> None:
        """Save the variables that are due."""
        self.sweep_failures += failures(self.containers.slots.save_due)

    def _forget_old(self, kind: type[Record], age: float) -> None:
        self.store.delete(kind, created_at=Before(time.time() - age))

    def _read_keys(self) -> None:
        """Accept the current named keys, end the jobs of revoked ones, and note whose sandboxes are to be stopped."""
        before = self.keys.volume_names()
        if revoked := NamedKeys(self.store).read_into(self.keys):
            self.end_jobs_of(revoked)
            self._revoked |= revoked
        if self.config.volumes:
            now = self.keys.volume_names()
            self._revoked |= narrowed(before, now) | narrowed(self._volume_names, now)  # users may have changed groups
            self._volume_names = now

    def _stop_revoked(self) -> None:
        """End the sandboxes of revoked keys, and those with lost volumes; no key is read later because this waits."""
        if owners := frozenset(self._revoked):
            self._revoked -= owners
            try:
                self.containers.stop(owners)
            except BaseException:  # the database may fail just then
                self._revoked |= owners
                raise

    def _drop_taken_over(self) -> None:
        """Drop what other gateways took over."""
        if self.membership.has_others:
            self.containers.endings.drop_taken_over()

    def _repeat(self, undo: ExitStack, work: Callable[[], int | None], every: float) -> None:
        """Do something at an interval (seconds), in a thread, until all that was begun later is undone."""
        stopped = threading.Event()
        thread = threading.Thread(target=_now_and_then, args=(stopped, work, every), name="gateway-sweep", daemon=True)
        thread.start()
        undo.callback(thread.join)
        undo.callback(stopped.set)


def narrowed(before: Mapping[str, tuple[str, ...] | None], now: Mapping[str, tuple[str, ...] | None]) -> frozenset[str]:
    """Return the owners that may not use a volume any more; None stands for all volumes."""
    found = set[str]()
    for owner, names in now.items():
        earlier = before.get(owner, ())
        if names is not None and (earlier is None or not set(earlier) <= set(names)):
            found.add(owner)
    return frozenset(found)


def _now_and_then(stopped: threading.Event, work: Callable[[], int | None], every: float) -> None:
    while not stopped.wait(every):
        failures(work)
