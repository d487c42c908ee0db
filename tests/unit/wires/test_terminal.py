"""The terminal wire without a sandbox: code whose client leaves, and answers of programs in the sandbox."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.exceptions import HTTPException

from agent_tools.results.execution import Execution
from agent_tools.wires.terminal.python import run_code
from agent_tools.wires.terminal.searches import answer_of


class Endless:
    """A sandbox whose code runs until it is cancelled."""

    def __init__(self) -> None:
        self.runs = threading.Event()

    def run_code(self, code: str, *, cancelled: threading.Event, **_: Any) -> Execution:
        self.runs.set()
        cancelled.wait()
        return Execution(())

    def cancel(self, _: threading.Event) -> None: ...


def test_code_whose_client_leaves_has_no_result_that_could_be_saved() -> None:
    sandbox, woken = Endless(), Future[str]()
    woken.set_result("")

    @contextmanager
    def acquire(*_: Any) -> Iterator[Any]:
        yield sandbox, woken

    async def receive() -> dict[str, str]:
        await asyncio.to_thread(sandbox.runs.wait)
        return {"type": "http.disconnect"}

    request, wire = SimpleNamespace(receive=receive), SimpleNamespace(containers=SimpleNamespace(acquire=acquire))
    call = SimpleNamespace(request=request, wire=wire, ensure=lambda: "cntr_1")
    with pytest.raises(HTTPException, match="hung up"):
        asyncio.run(run_code(cast("Any", call), lambda each: each, "while True: pass", 60.0))


@pytest.mark.parametrize(
    ("output", "status"),
    [
        *((text, 500) for text in (b"", b"[]", b"1", b'{"error": true}', b'{"error": "x"}', b'{"error": [404]}')),
        *((text, 500) for text in (b'{"error": null}', b'{"error": [404, 1]}', b'{"error": ["x", "y"]}')),
        (b'{"error": [404, "gone"]}', 404),
        (b'{"error": [999, "gone"]}', 400),
    ],
)
def test_a_program_that_answers_anything_else_is_refused(output: bytes, status: int) -> None:
    with pytest.raises(HTTPException) as refused:
        answer_of(output)
    assert refused.value.status_code == status
    assert answer_of(b'{"results": []}') == {"results": []}
