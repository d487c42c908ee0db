"""A client's half of a WebSocket of the gateway, after the handshake: its frames, in pieces.

The first byte chooses: `R` raw bytes; anything else is payloads with MARK between them, each a frame that begins with
the payload's first byte.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.server import ServerState

from agent_tools.bodies.connections import Connections
from agent_tools.bodies.frames import BURST, BYTES_A_FRAME
from agent_tools.limits import KIB
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"
PIECE = 4 * KIB  # bytes that come at once
HEAD = b"GET /v1/responses HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
HEAD += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"


def unfold_frames(data: bytes) -> Parts:
    """What the client sends, in pieces."""
    if data[:1] == b"R":
        whole = unfold.text(data[1:])
    else:
        payloads = (unfold.text(part, 64 * KIB) for part in data.split(MARK))
        whole = b"".join(map(_frame, payloads))[: unfold.MOST]
    return [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]


def _frame(payload: bytes) -> bytes:
    head, data = payload[:1] or b"\x81", payload[1:]
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return head + length + bytes(4) + data


def hear(parts: Parts) -> None:
    """Take it all in: the application gets no more than was sent, and small frames come to an end."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_hear(parts))
    finally:
        loop.close()


async def _hear(parts: Parts) -> None:
    found: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        while not found or found[-1]["type"] != "websocket.disconnect":
            found.append(await receive())

    shared = Connections(1, 60, lambda _: None, message_timeout=60, min_rate=1)
    options = {"ws": "websockets-sansio", "ws_max_size": unfold.MOST, "ws_per_message_deflate": False}
    config = shared.bound(application, log_config=None, **options)
    transport, state = _Transport(), ServerState()
    client: Any = config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]
    client.connection_made(transport)
    client.data_received(HEAD)
    for piece in parts:
        await asyncio.sleep(0)
        client.data_received(piece)
    client.connection_lost(None)
    await asyncio.gather(*state.tasks)
    sent = sum(map(len, parts))
    assert sum(len(each.get("text") or each.get("bytes") or "") for each in found) <= sent
    assert len(found) <= BURST + sent / BYTES_A_FRAME + 100


class _Transport(asyncio.Transport):
    """The client's other end, which takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False

    def write(self, data: Any) -> None:
        """Take it."""

    def close(self) -> None:
        self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        """Everything has been sent already."""

    def resume_reading(self) -> None:
        """Likewise."""

    def is_reading(self) -> bool:
        """It always is."""
        return True

    def can_write_eof(self) -> bool:
        """It needs no notice."""
        return False

    def get_write_buffer_size(self) -> int:
        """Everything has been taken."""
        return 0


TARGET = Target(
    hear,
    unfold_frames,
    words=(
        MARK,
        b"\x81",
        b"\x01",
        b"\x00",
        b"\x80",
        b"\x89hi",
        b"\x88\x03\xe8",
        b'\x81{"type": "response.create"}',
        b"\x81\xff\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\xc1",
        unfold.repeat(1, 12),
    ),
    max_len=2048,
)
