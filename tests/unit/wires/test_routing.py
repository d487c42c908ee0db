"""Routes of a wire: in which thread large answers are made."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import httpx

from agent_tools.limits import MIB
from agent_tools.wires.routing import Routes, application, failure_of
from tests.gateway.in_loop import LargeJsonHere


def test_a_full_disk_is_no_fault_of_the_request() -> None:
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EISDIR)
    assert [failure_of(OSError(each, "full"))[1] for each in numbers] == [507, 507, 400]


def test_a_large_answer_is_written_in_a_thread() -> None:
    routes = Routes(lambda _: SimpleNamespace())

    @routes.on("GET", "/large")
    async def large(_: Any) -> Any:
        return {"files": [{"text": "x" * MIB}]}

    @routes.on("GET", "/many")
    async def many(_: Any) -> Any:
        return list(range(MIB))

    async def main() -> None:
        transport = httpx.ASGITransport(application(routes.made()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with LargeJsonHere() as here:
                answers = [await client.get(path) for path in ("/large", "/many")]
        assert here.sizes == []
        assert answers[0].json() == {"files": [{"text": "x" * MIB}]}
        assert answers[1].json()[-1] == MIB - 1

    asyncio.run(main())
