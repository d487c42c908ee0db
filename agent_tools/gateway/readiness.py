"""Checks of the engine, the database and the upstream for probes, which strangers may send."""

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
    """Does one check after the other; all who ask during one share its result. For one event loop.

    A part that hangs keeps one thread, beside those that serve requests, and is not asked again until it has answered.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._engine = _Question(partial(_engine_answers, services.runtime))
        self._database = _Question(services.store.answers)
        self._check: asyncio.Task[dict[str, bool]] | None = None

    async def check(self) -> dict[str, bool]:
        """Return which of the engine, the upstream and the database answers."""
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._checked())
        return await asyncio.shield(self._check)

    async def close(self) -> None:
        """Stop waiting for a check; a thread that hangs goes on."""
        running = [each for each in (self._check, self._engine.asked, self._database.asked) if each]
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running)

    async def _checked(self) -> dict[str, bool]:
        services = self._services
        engine, upstream, database = await asyncio.gather(
            self._engine.answers(),
            services.upstream.is_ready(),
            self._database.answers(),
        )
        checks = {"engine": engine, "upstream": upstream, "database": database}
        services.metrics.readiness(checks)
        return checks


class _Question:
    """A question that is asked in a thread of its own, again only once the last one has been answered."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.asked: asyncio.Task[bool] | None = None
        self._ask = partial(anyio.to_thread.run_sync, ask, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))

    async def answers(self) -> bool:
        if self.asked is None or self.asked.done():
            self.asked = asyncio.create_task(self._ask())
        await asyncio.wait([self.asked], timeout=READY_TIMEOUT)
        return self.asked.done() and self.asked.result()


def _engine_answers(runtime: Runtime) -> bool:
    try:
        runtime.ask_engine()
    except AgentToolsError:
        return False
    return True
