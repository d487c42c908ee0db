"""The asynchronous form of a script. Its methods run in a thread; host calls are tasks of the caller's event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from agent_tools.code_mode.script import Event, Script
from agent_tools.results.execution import Execution
from agent_tools.runtime.in_thread import in_thread, iterate_in_thread


class AsyncScript:
    """A `Script` whose methods are awaited. Cancelling one interrupts its code and keeps the script's state."""

    def __init__(self, script: Script) -> None:
        self._script = script

    @property
    def last(self) -> Execution | None:
        """Return the last call's execution, with all outputs."""
        return self._script.last

    async def load_script(self, code: str, timeout: float | None = None) -> None:
        """See `Script.load_script`."""
        await self._do(partial(self._script.load_script, code, timeout))

    async def run(self, name: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """See `Script.run`."""
        return await self._do(partial(self._script.run, name, *args, timeout=timeout, **kwargs))

    async def _do(self, work: Callable[[], Any]) -> Any:
        with self._script.calling() as call:
            return await in_thread(work, partial(self._script.cancel, call))

    def run_stream(
        self, name: str, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> AsyncGenerator[Event, None]:
        """See `Script.run_stream`."""
        events = self._script.run_stream(name, *args, timeout=timeout, **kwargs)
        return iterate_in_thread(events, self._script.cancel)
