"""SandboxFusion's form of a cell."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from agent_tools.errors import FileRejected
from agent_tools.results.execution import Execution, Omitted, Restarted, Stream
from agent_tools.wires.sandboxfusion import _run_jupyter, cell_of


def test_what_was_left_out_and_a_kernel_that_had_ended_are_told() -> None:
    cut = Omitted("5 characters", is_text=True)
    told = cell_of(Execution((Restarted("it died"), Stream("stdout", "a"), cut, Stream("stderr", "e"))))
    assert told["stdout"] == "a\n[... 5 characters left out ...]\n"
    assert "it died" in told["stderr"]
    assert told["stderr"].endswith("\ne")


def test_a_kernel_that_cannot_enter_its_folder_is_closed() -> None:
    closed: list[bool] = []

    def refuse(*_: Any, **__: Any) -> Any:
        raise FileRejected("no code was run")

    async def run(_: Any, work: Any, __: Any) -> Any:
        kernel = SimpleNamespace(run_code=refuse, close=lambda: closed.append(True))
        return work(SimpleNamespace(fresh_kernel=lambda: kernel), "s-1")

    call = SimpleNamespace(wire=SimpleNamespace(run=run))
    assert asyncio.run(_run_jupyter(cast("Any", call), ["1"]))["status"] == "SandboxError"
    assert closed == [True]
