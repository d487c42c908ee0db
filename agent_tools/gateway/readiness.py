"""Whether the engine, the database and the upstream answer, for probes, which strangers may send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread

from agent_tools.errors import AgentToolsError
from agent_tools.gateway.services import Services
from agent_tools.runtime.runtime import Runtime

READY_TIMEOUT = 5.0  # seconds in which the engine and the database answer, each


class Readiness:
    """Checks one after the other, for all who ask meanwhile. For one event loop.

    A check that hangs keeps a thread of its own, and takes none that serves requests.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._engine, self._database = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
        self._check: asyncio.Task[dict[str, bool]] | None = None

    async def check(self) -> dict[str, bool]:
        """Return which of the engine, the upstream and the database answers."""
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._checked())
        return await asyncio.shield(self._check)

    async def close(self) -> None:
        """End a check."""
        if self._check:
            self._check.cancel()
            await asyncio.wait([self._check])

    async def _checked(self) -> dict[str, bool]:
        services = self._services
        engine, upstream, database = await asyncio.gather(
            _answers(partial(_engine_answers, services.runtime), self._engine),
            services.upstream.is_ready(),
            _answers(services.store.answers, self._database),
        )
        checks = {"engine": engine, "upstream": upstream, "database": database}
        services.metrics.readiness(checks)
        return checks


async def _answers(ask: Callable[[], bool], limiter: anyio.CapacityLimiter) -> bool:
    with anyio.move_on_after(READY_TIMEOUT):
        return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)
    return False


def _engine_answers(runtime: Runtime) -> bool:
    try:
        runtime.ask_engine()
    except AgentToolsError:
        return False
    return True
