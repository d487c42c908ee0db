"""Messages before the stream, each a frame (guest/wire/framing.py) of JSON.

They are read to the byte, since a sandbox's output follows.
"""

from __future__ import annotations

import json
import socket
import time
from functools import partial
from typing import Any

from agent_tools.guest.wire.framing import pack, read_frame

MESSAGE = 1  # the one kind of frame


def send_message(connection: socket.socket, message: dict[str, Any] | None) -> None:
    """Send a message; an empty one for None."""
    connection.sendall(pack(MESSAGE, b"" if message is None else json.dumps(message).encode()))


def read_message(connection: socket.socket, most: int, deadline: float) -> dict[str, Any] | None:
    """Read a message until a deadline (monotonic seconds); None for an empty one.

    Raises:
        OSError: it does not come in time, is too large, or is no JSON object.
    """
    try:
        _, data = read_frame(partial(read_exactly, connection, deadline=deadline), {MESSAGE: most}.get)
        message = json.loads(data or b"{}")
    except (ValueError, RecursionError) as exc:
        raise OSError(f"no message in JSON: {exc!s:.100}") from exc
    if not isinstance(message, dict):
        raise OSError("a message is not a JSON object")
    return message if data else None


def read_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Read so many bytes until a deadline. Raises OSError."""
    found = bytearray()
    while len(found) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        found += piece
    return bytes(found)
