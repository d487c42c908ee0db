"""Forms with a file: bounded in all their parts, counted as they arrive."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from agent_tools.bodies.files import (
    DISK_CHECK_BYTES,
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_FRAME_BYTES,
    file_body,
    file_form,
    uploaded,
)
from agent_tools.bodies.json_body import BodyRefused
from agent_tools.containers.failures import ContainersError
from agent_tools.containers.shares import Shares
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import Store
from agent_tools.limits import GIB, MIB
from tests.gateway.asking import BOUNDARY, HEAD
from tests.gateway.conftest import Gateway, NewGateway


def sent(gateway: Gateway, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/files", content=content, headers={**BOUNDARY, **(headers or {})}, timeout=60)


def field(name: str, value: bytes, more: bytes = b"") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n%s\r\n' % (name.encode(), more, value)


def test_a_form_is_bounded_in_all_its_parts(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    file, end = HEAD + b"x\r\n", b"--b--\r\n"
    assert sent(gateway, field("purpose", b"user_data") + file + end).status_code == 200
    for content in (
        b"".join(field(f"f{n}", b"x") for n in range(MAX_FIELDS + 1)) + file + end,
        field("f", b"x" * (MAX_FIELD_BYTES + 1)) + file + end,
        field("f", b"x", b"X-Long: " + b"x" * 100_000 + b"\r\n") + file + end,
        field("f", b"x", b"X-Many: x\r\n" * 1000) + file + end,
        file + file + end,
        b"no form",
        b"{}",
    ):
        assert sent(gateway, content).status_code == 400, content[:100]
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=" + "b" * 5000, ""):
        assert sent(gateway, file + end, {"Content-Type": kind}).status_code == 400, kind


@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-16", '"utf-7"'])
def test_a_form_is_read_in_utf_8_only(new_gateway: NewGateway, charset: str) -> None:
    content = field("purpose", b"user_data") + HEAD + b"x\r\n--b--\r\n"
    kind = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    answer = sent(new_gateway({}), content, kind)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Send the form in UTF-8.")


class Sender:
    """A client that sends without end; counts what was taken from it."""

    def __init__(self) -> None:
        self.taken = 0
        self._next = HEAD

    async def __call__(self) -> dict[str, Any]:
        piece, self._next = self._next, bytes(64 * 1024)
        self.taken += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}


@pytest.mark.parametrize(
    ("left", "most", "free", "status"),
    [(MIB, GIB, 8 * GIB, 400), (GIB, MIB, 8 * GIB, 413), (GIB, GIB, 0, 507)],
    ids=["share", "size", "disk"],
)
def test_an_upload_without_end_is_refused_soon(work_dir: Path, left: int, most: int, free: int, status: int) -> None:
    shares = Shares(GatewayConfig("http://u", data_dir=work_dir), Store("sqlite://"), lambda _: free)

    async def take(sender: Sender) -> None:
        headers = [(b"content-type", BOUNDARY["Content-Type"].encode())]
        scope = {"type": "http", "method": "POST", "headers": headers, "owner": "me"}
        async with file_form(Request(scope, sender), shares, lambda _: left, most):
            raise AssertionError

    for _ in range(2):  # what was refused does not count any more
        sender = Sender()
        with pytest.raises((BodyRefused, ContainersError)) as refusal:
            asyncio.run(take(sender))
        assert client_error(refusal.value).status == status
        assert sender.taken <= (0 if status == 507 else MIB) + MAX_FRAME_BYTES + DISK_CHECK_BYTES // 100


@pytest.mark.parametrize("is_form", [True, False])
def test_files_are_kept_in_the_gateways_folder_while_they_arrive(work_dir: Path, is_form: bool) -> None:
    shares = Shares(GatewayConfig("http://u", data_dir=work_dir), Store("sqlite://"), lambda _: GIB)
    content = HEAD + bytes(2 * MIB) + b"\r\n--b--\r\n"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def kept() -> str:
        headers = [(b"content-type", BOUNDARY["Content-Type"].encode())]
        request = Request({"type": "http", "method": "POST", "headers": headers, "owner": "me"}, receive)
        async with AsyncExitStack() as stack:
            if is_form:
                form = await stack.enter_async_context(file_form(request, shares, lambda _: GIB, GIB))
                file = uploaded(form)[0].file
            else:
                file = await stack.enter_async_context(file_body(request, shares, lambda _: GIB, GIB))
            return os.readlink(f"/proc/self/fd/{file.fileno()}")

    assert asyncio.run(kept()).startswith(f"{work_dir}/")
    assert list((work_dir / "arriving").iterdir()) == []
