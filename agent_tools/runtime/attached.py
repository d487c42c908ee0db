"""One short exchange with a command that an engine runs for us: its input, and what it prints, within bounds.

Format of the stream: https://docs.docker.com/reference/api/engine/ (attach to a container, stream format).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

STDOUT = 1


def conversation(stream: socket.socket, data: bytes, seconds: float, most: int) -> bytes:
    """Send `data`, then take what comes until the end, for at most `seconds` and `most` bytes."""
    deadline = time.monotonic() + seconds
    taken = bytearray()
    with contextlib.suppress(OSError):  # a command that ends early, or says nothing in time, is heard as far as it came
        stream.settimeout(seconds)
        stream.sendall(data)
        while len(taken) <= most and (left := deadline - time.monotonic()) > 0:
            stream.settimeout(left)
            part = stream.recv(65_536)
            if not part:
                break
            taken += part
    return bytes(taken)


def stdout_of(raw: bytes) -> bytes:
    """What the command printed, of frames (stream u8, three zeros, length u32) of which the last may be cut."""
    said = bytearray()
    at = 0
    while at + 8 <= len(raw):
        kind, length = struct.unpack_from(">BxxxL", raw, at)
        if kind == STDOUT:
            said += raw[at + 8 : at + 8 + length]
        at += 8 + length
    return bytes(said)
