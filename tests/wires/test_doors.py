"""Every door beside every other: a key that runs all the code it can at one keeps no other key from running code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.mcp import asgi_app as mcp
from tests.gateway.asking import until
from tests.gateway.conftest import NewGateway
from tests.gateway.postgresql import another, postgresql
from tests.mcp_door.conftest import text_of
from tests.mcp_door.test_http import connected
from tests.wires.conftest import MOUNTS, Served
from tests.wires.test_bodies import SHARE, upload_beyond_the_share
from tests.wires.test_vllm import said, session

__all__ = ["postgresql"]
PLACES = 4  # three of them for one key
ASKED = 6
WAIT = """
import os, time
open(os.path.join({signs!r}, os.urandom(8).hex()), "w").close()
while not os.path.exists({end!r}):
    time.sleep(0.05)
"""


def posted(served: Served, key: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {served.keys[key]}", **headers}
    return httpx.post(f"{served.gateway.url}{path}", json=body, headers=headers, timeout=90)


def page(served: Served, key: str, code: str, _: int) -> str:
    return posted(served, key, "/page/run", {"code": code}).text


def e2b(served: Served, key: str, code: str, _: int) -> str:
    made = posted(served, key, "/e2b/sandboxes", {"timeout": 86_400}).json()
    return posted(served, key, "/e2b/execute", {"code": code}, **{"E2b-Sandbox-Id": made["sandboxID"]}).text


def librechat(served: Served, key: str, code: str, _: int) -> str:
    return posted(served, key, "/librechat/exec", {"lang": "py", "code": code}).text


def sandboxfusion(served: Served, key: str, code: str, _: int) -> str:
    body = {"code": code, "language": "python", "run_timeout": 3_600}
    return posted(served, key, "/sandboxfusion/run_code", body).text


def terminal(served: Served, key: str, code: str, number: int) -> str:
    return posted(served, key, "/terminal/python", {"code": code}, **{"X-User-Id": f"user-{number}"}).text


def vllm(served: Served, key: str, code: str, number: int) -> str:
    async def main() -> str:
        async with AsyncExitStack() as stack:
            opened = await session(served, stack, key, x_session_id=str(number))
            await opened.initialize()
            return await said(opened, code)

    return asyncio.run(main())


def mcp_door(served: Served, key: str, code: str, _: int) -> str:
    async def main() -> str:
        async with connected(f"{served.gateway.url}/mcp", served.keys[key]) as client:
            return text_of(await client.call_tool("run_python", {"code": code}))

    return asyncio.run(main())


Door = Callable[[Served, str, str, int], str]
DOORS: tuple[Door, ...] = (page, e2b, librechat, sandboxfusion, terminal, vllm, mcp_door)


@pytest.fixture
def serve_doors(new_gateway: NewGateway) -> Iterator[Callable[..., Served]]:
    """Makes gateways with every door."""
    options = {"named_keys": True, "max_sandboxes": PLACES, "pool": 0, "timeout": 120.0}
    with ExitStack() as stack:
        yield lambda **more: Served(new_gateway({}, mounts=[*MOUNTS, mcp.MOUNT], **options, **more), stack)


@pytest.mark.parametrize("door", DOORS)
def test_a_key_that_takes_all_it_can_get_keeps_no_other_from_running_code(
    serve_doors: Callable[..., Served], work_dir: Path, door: Door
) -> None:
    run_beside(serve_doors(), work_dir, door, DOORS)


def test_it_is_so_with_postgresql(serve_doors: Callable[..., Served], work_dir: Path, postgresql: str) -> None:
    run_beside(serve_doors(database=postgresql), work_dir, e2b, (page, sandboxfusion, mcp_door))


def test_uploads_count_with_postgresql_too(serve: Any, postgresql: str) -> None:
    upload_beyond_the_share(serve(max_containers_bytes=SHARE, database=another(postgresql, "uploads")))


def run_beside(served: Served, work_dir: Path, door: Door, others: Sequence[Door]) -> None:
    """Take all places that a key can get at one door, and run code of another key at others meanwhile."""
    signs = work_dir / "signs"
    signs.mkdir()
    end = signs / "end"
    wait = WAIT.format(signs=str(signs), end=str(end))
    with ThreadPoolExecutor(ASKED) as pool:
        try:
            held = [pool.submit(door, served, "first", wait, number) for number in range(ASKED)]
            until(lambda: len(list(signs.iterdir())) == PLACES - 1)
            for other in others:
                assert "42" in other(served, "second", "print(6 * 7)", 0), other.__name__
            assert len(list(signs.iterdir())) == PLACES - 1
            assert not any(each.done() for each in held)
        finally:
            end.touch()
        for each in held:
            each.result()
    assert len(list(signs.iterdir())) == ASKED + 1
