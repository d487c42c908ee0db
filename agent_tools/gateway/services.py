"""The services of a gateway, built in order and released in reverse."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from agent_tools.containers.containers import Containers
from agent_tools.containers.records import Record
from agent_tools.containers.rows import Before
from agent_tools.containers.sweeping import failures
from agent_tools.gateway.background import Background
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.known import KnownConversations
from agent_tools.gateway.files import ContainerFiles, Uploads
from agent_tools.gateway.named_keys import READ_EVERY, NamedKeys
from agent_tools.gateway.requests.auth import RequestKeys
from agent_tools.gateway.requests.large_json import LargeJson
from agent_tools.gateway.requests.rates import Rates
from agent_tools.gateway.store.records import StoredCall, StoredEvents, StoredItem, StoredMark, StoredResponse
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.telemetry.metrics import Metrics
from agent_tools.gateway.telemetry.tracing import Tracer
from agent_tools.gateway.upstream import Upstream
from agent_tools.runtime.sessions import RuntimeLike

SWEEP_EVERY = 15.0  # seconds
_FORGOTTEN: tuple[type[Record], ...] = (
    StoredResponse,
    StoredItem,
    StoredCall,
    StoredEvents,
    StoredMark,
)  # after `retention`


class Services:
    """Made at the start of a gateway; `close` ends all and leaves no sandbox.

    Attributes:
        sweep_failures: parts of sweeps that failed since the start; a container whose files would not go is one.
    """

    def __init__(self, config: GatewayConfig, runtime: RuntimeLike, tracer: Tracer | None = None) -> None:
        self.config = config
        self.runtime = runtime
        config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sweep_failures = 0
        self._closed = threading.Event()
        with ExitStack() as undo:
            self.store = Store(config.database_url, config.database_timeout)
            undo.callback(self.store.close)
            self.background = Background(self.store)
            self.keys = RequestKeys(config.api_keys, with_named=config.named_keys)
            self.rates = Rates(config.max_requests_per_minute)
            self._read_keys()
            self.containers = Containers(config, self.store, runtime)
            undo.callback(runtime.settle)  # the engine removes sandboxes beside what goes on
            undo.callback(self.containers.close)
            self.containers.most_of = lambda owner: self.keys.max_containers(owner, config.max_containers)
            self.shares = self.containers.shares
            self.large_json = LargeJson(config.json_threads)
            self.conversations = KnownConversations(config, self.store)
            self.uploads = Uploads(self.containers, self.store)
            self.files = ContainerFiles(self.containers, self.store, self.uploads)
            self.tracer = tracer or Tracer()
            undo.callback(self.tracer.close)
            self.metrics = Metrics(
                self.containers.running,
                lambda: self.sweep_failures,
                lambda: runtime.pools,
                lambda: self.store.failures,
                lambda: self.containers.places.parked,
            )
            self.upstream = Upstream(config)
            self.pool = ThreadPoolExecutor(config.max_responses, "gateway-turn")
            undo.callback(self.pool.shutdown)
            repeated = [(self.sweep, SWEEP_EVERY), *([(self._read_keys, READ_EVERY)] * config.named_keys)]
            for each in repeated:
                thread = threading.Thread(target=self._now_and_then, args=each, name="gateway-sweep", daemon=True)
                thread.start()
                undo.callback(thread.join)
            undo.callback(self._closed.set)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Release everything but the upstream's connections, which their loop closes."""
        self._undo.close()

    def sweep(self) -> int:
        """Expire and forget all that is due; return the number of parts that failed.

        A failed part, such as with a database that is away for a while, is left to the next sweep.
        """
        parts: list[Callable[[], int | None]] = [self.containers.sweep, self.uploads.sweep, self.background.sweep]
        parts.append(self.containers.places.save_due)
        parts += [partial(self._forget_old, kind) for kind in _FORGOTTEN]
        failed = sum(failures(part) for part in parts)
        self.sweep_failures += failed
        return failed

    def _forget_old(self, kind: type[Record]) -> None:
        self.store.delete(kind, created_at=Before(time.time() - self.config.retention))

    def _read_keys(self) -> None:
        """Accept the named keys of now; while the database is away, those of before."""
        if self.config.named_keys:
            failures(partial(NamedKeys(self.store).read_into, self.keys))

    def _now_and_then(self, work: Callable[[], object], every: float) -> None:
        while not self._closed.wait(every):
            work()
