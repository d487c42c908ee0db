"""Processes of a session."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agent_tools.results.commands import CommandResult
from agent_tools.wires.codex.messages import RpcError
from agent_tools.wires.codex.processes import EVENT, KEPT, Log, SessionProcesses


class NeverBegun:
    """A process that a hostile sandbox never starts, and the resources that it is one of."""

    it = sync = property(lambda self: self)
    reason = ""

    def __init__(self) -> None:
        self.is_looked_at, self.is_killed = threading.Event(), threading.Event()

    async def start(self, *_: Any, **__: Any) -> NeverBegun:
        return self

    async def end(self, _: Any) -> None:
        pass

    async def tell(self, *_: Any) -> None:
        pass

    def has_begun(self, timeout: float) -> bool:
        self.is_looked_at.set()
        self.is_killed.wait(timeout)
        return False

    def kill(self, reason: str = "") -> None:
        self.reason = self.reason or reason
        self.is_killed.set()

    def result(self) -> CommandResult:
        return CommandResult(137, reason=self.reason)


def test_a_sandbox_that_never_starts_a_process_holds_nobody_up() -> None:
    never: Any = NeverBegun()
    processes = SessionProcesses(never, ("", ""), str, never.tell)
    processes.start_seconds = 0.05
    with pytest.raises(RpcError, match=r"within 0.05 s"):
        asyncio.run(processes.start("1", ["true"], ".", {}, False))
    assert never.is_killed.is_set()


def test_a_process_whose_start_is_cancelled_ends() -> None:
    async def main() -> None:
        never: Any = NeverBegun()
        processes = SessionProcesses(never, ("", ""), str, never.tell)
        starting = asyncio.ensure_future(processes.start("1", ["true"], ".", {}, False))
        await asyncio.to_thread(never.is_looked_at.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert never.is_killed.is_set()

    asyncio.run(main())


def test_output_in_small_pieces_is_kept_within_bounds() -> None:
    log = Log(None, takes_input=False)
    for _ in range(20_000):
        log.add("stdout", b"x")
    assert len(log.chunks) == KEPT // (EVENT + 1)
    assert log.size == len(log.chunks) * (EVENT + 1)
