"""Processes of a session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_tools.wires.codex.messages import RpcError
from agent_tools.wires.codex.processes import EVENT, KEPT, Log, SessionProcesses


class NeverBegun:
    """A process that a hostile sandbox never starts, and the resources that it is one of."""

    pid, is_over, is_ended = 0, False, False
    it = property(lambda self: self)

    def __init__(self) -> None:
        self.is_looked_at = asyncio.Event()

    async def start(self, *_: Any, **__: Any) -> NeverBegun:
        return self

    async def read(self, _: Any, wait: float) -> None:
        self.is_looked_at.set()
        await asyncio.sleep(wait)

    async def end(self, _: Any) -> None:
        self.is_ended = True


def test_a_sandbox_that_never_starts_a_process_holds_nobody_up() -> None:
    never: Any = NeverBegun()
    processes = SessionProcesses(never, ("", ""), str, str, never.read)
    processes.start_seconds = 0.05
    with pytest.raises(RpcError, match=r"within 0.05 s"):
        asyncio.run(processes.start("1", ["true"], "/workspace", {}, False))
    assert never.is_ended


def test_a_process_whose_start_is_cancelled_ends() -> None:
    async def main() -> None:
        never: Any = NeverBegun()
        processes = SessionProcesses(never, ("", ""), str, str, never.read)
        starting = asyncio.ensure_future(processes.start("1", ["true"], "/workspace", {}, False))
        await never.is_looked_at.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert never.is_ended

    asyncio.run(main())


def test_output_in_small_pieces_is_kept_within_bounds() -> None:
    log = Log(None, is_terminal=False, takes_input=False)
    for _ in range(20_000):
        log.add("stdout", b"x")
    assert len(log.chunks) == KEPT // (EVENT + 1)
    assert log.size == len(log.chunks) * (EVENT + 1)
