"""A body that is a stream of messages, each in an envelope: a byte of flags, four bytes of length, and JSON.

Format: https://connectrpc.com/docs/protocol#streaming-rpcs
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from agent_tools.bodies.json_body import BodyRefused
from agent_tools.limits import MIB

MAX_MESSAGE = 4 * MIB
MAX_MESSAGES = 100_000  # of one stream
END = 2  # the flag of the last message
_HEAD = struct.Struct(">BI")


def envelope(message: dict[str, Any], flags: int = 0) -> bytes:
    """Return a message of a stream."""
    data = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(flags, len(data)) + data


class Envelopes:
    """The messages of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._count = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take bytes; return the messages that are whole now, each as JSON.

        Raises:
            BodyRefused: 400, a message is compressed; 413, it is too large, or one too many.
        """
        self._data += piece
        found, place = list[bytes](), 0
        while len(self._data) - place >= _HEAD.size:
            flags, size = _HEAD.unpack_from(self._data, place)
            if size > MAX_MESSAGE:
                raise BodyRefused(413, f"A message is larger than {MAX_MESSAGE:,} bytes.")
            if flags & ~END:
                raise BodyRefused(400, "Messages of a stream must not be compressed.")
            end = place + _HEAD.size + size
            if len(self._data) < end:
                break
            self._count += 1
            if self._count > MAX_MESSAGES:
                raise BodyRefused(413, f"The stream has more than {MAX_MESSAGES:,} messages: begin another one.")
            found.append(bytes(self._data[place + _HEAD.size : end]))
            place = end
        del self._data[:place]
        return found


async def messages(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a stream; others are served between two. Errors as for `Envelopes.feed`."""
    envelopes = Envelopes()
    async for piece in request.stream():
        for message in envelopes.feed(piece):
            yield message
            await asyncio.sleep(0)
