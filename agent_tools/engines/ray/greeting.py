"""Messages before the stream. They are read to the byte, since a sandbox's output follows."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct(">I")


def send_message(connection: socket.socket, message: dict[str, Any] | None) -> None:
    """Send a message; an empty one for None."""
    data = b"" if message is None else json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def read_message(connection: socket.socket, most: int, deadline: float) -> dict[str, Any] | None:
    """Read a message until a deadline (monotonic seconds); None for an empty one.

    Raises:
        OSError: it does not come in time, is too large, or is no JSON object.
    """
    (length,) = _LENGTH.unpack(read_exactly(connection, _LENGTH.size, deadline))
    if length > most:
        raise OSError(f"a message of {length:,} bytes is over the limit of {most:,}")
    if not length:
        return None
    try:
        message = json.loads(read_exactly(connection, length, deadline))
    except (ValueError, RecursionError) as exc:
        raise OSError("a message is not JSON") from exc
    if not isinstance(message, dict):
        raise OSError("a message is not a JSON object")
    return message


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
