"""The streams that an engine attaches us to: its frames of output, and one short exchange with a command, bounded.

Format of the stream: https://docs.docker.com/reference/api/engine/ (attach to a container, stream format).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

STDOUT = 1
_HEADER = struct.Struct(">BxxxI")


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


class OutputFrames:
    """Takes the engine's frames apart, in whatever pieces they come: stream u8, three zeros, length u32."""

    def __init__(self) -> None:
        self._left = 0  # bytes of the frame under way
        self._is_stdout = False
        self._header = b""

    def stdout_of(self, data: bytes) -> bytes:
        """The stdout bytes among some more of the frames."""
        found, at = bytearray(), 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                if self._is_stdout:
                    found += piece
                self._left -= len(piece)
                at += len(piece)
            else:
                piece = data[at : at + _HEADER.size - len(self._header)]
                self._header += piece
                at += len(piece)
                if len(self._header) == _HEADER.size:
                    stream, self._left = _HEADER.unpack(self._header)
                    self._is_stdout, self._header = stream == STDOUT, b""
        return bytes(found)
