"""Checks before a gateway starts."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.serving.run import Server, problems, serve
from agent_tools.gateway.serving.service_manager import notify
from agent_tools.runtime.runtime import Runtime
from tests.gateway.conftest import NewGateway


def test_what_is_missing_is_told_before_the_start(process_runtime: Runtime, work_dir: Path) -> None:
    config = GatewayConfig("http://127.0.0.1:9/v1", data_dir=work_dir / "d", database="postgresql+nodriver://h/d")
    (problem,) = problems(config, process_runtime)
    assert "does not answer" in problem
    with pytest.raises(InvalidParams, match="database cannot be used"):
        serve(config, process_runtime)


@pytest.mark.parametrize("is_abstract", [True, False])
def test_the_service_manager_is_told_of_start_and_stop(
    new_gateway: NewGateway, work_dir: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    address = f"\0agent-tools-{work_dir.name}" if is_abstract else str(work_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        gateway = new_gateway({})
        assert manager.recv(100) == b"READY=1"
        assert httpx.get(f"{gateway.url}/health").status_code == 200
        gateway.__exit__()
        assert manager.recv(100) == b"STOPPING=1"


def test_a_gateway_that_fails_to_start_is_not_told_as_ready(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def failing(_: Starlette) -> AsyncIterator[None]:
        raise OSError
        yield

    config = GatewayConfig("http://127.0.0.1:9/v1", data_dir=work_dir / "d")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(work_dir / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(work_dir / "notify"))
        with pytest.raises(SystemExit):
            Server(config, Starlette(lifespan=failing), host="127.0.0.1", port=0).run()
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_a_service_manager_that_is_gone_does_not_matter(work_dir: Path) -> None:
    for address in ("", str(work_dir / "nobody"), "@nobody-at-all", "/" * 200):
        notify(address, "READY=1")
