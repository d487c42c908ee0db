"""Streams of events: silent, slow, or with large events."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import anyio
import pytest

from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.sse import CHUNK_BYTES, EventStreamResponse
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import is_idle, post, until
from tests.gateway.conftest import NewGateway


def test_a_long_silence_is_bridged_by_signs_of_life_that_take_no_number_of_an_event(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Late.", wait_before=go_on)]}, heartbeat=0.05)
    numbers, known = list[int](), -1
    for event in gateway.client().responses.create(model="m", input="Go.", stream=True):
        if event.type == "keepalive":
            assert event.sequence_number == known
            go_on.set()
        else:
            numbers.append(known := event.sequence_number)
    assert go_on.is_set()
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("is_over", [True, False])
def test_a_client_that_takes_nothing_counts_as_gone(is_over: bool) -> None:
    gone = threading.Event()

    async def serve() -> None:
        log = EventLog(1000)
        log.append({"type": "response.created"})
        log.is_closed = is_over
        await EventStreamResponse(log, gone.set, timeout=0.01)({}, anyio.sleep_forever, send)  # type: ignore[arg-type]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    anyio.run(serve)
    assert gone.is_set()


def test_a_client_that_reads_slowly_holds_nobody_up(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="x" * 4_000_000, piece=20_000), "n": ["Ok."]})
    body = json.dumps({"model": "m", "input": "Go.", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as slow:
        slow.sendall(head.encode() + body)
        until(lambda: gateway.upstream.requests and is_idle(gateway))
        assert post(gateway, model="n", tools=[]).json()["status"] == "completed"
        found = bytearray()
        while piece := slow.recv(65536):
            found += piece
    assert found.count(b"event: response.output_text.delta") == 200
    assert b"event: response.completed" in found
    assert found.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_large_event_is_sent_in_parts() -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def stream() -> None:
        log = EventLog(100 * CHUNK_BYTES)
        log.append({"type": "large", "text": "x" * 10 * CHUNK_BYTES})
        log.append({"type": "small"})
        log.close()
        await EventStreamResponse(log, lambda: None)({}, receive, send)

    asyncio.run(stream())
    assert max(map(len, sent)) <= 2 * CHUNK_BYTES
    lines = b"".join(sent).decode().split("\n\n")
    assert [line.split("\n")[0] for line in lines[:2]] == ["event: large", "event: small"]
    assert len(json.loads(lines[0].split("data: ")[1])["text"]) == 10 * CHUNK_BYTES
