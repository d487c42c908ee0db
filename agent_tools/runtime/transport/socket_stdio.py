"""A socket in the place of a sandbox's stdin and stdout."""

from __future__ import annotations

import contextlib
import socket

from agent_tools.engines.engine import Stdio

CHUNK_BYTES = 256 * 1024


class SocketStdio(Stdio):
    """Implements the Stdio protocol on a connected stream socket, which it owns."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return received bytes; b'' at the end, None if there are none yet."""
        try:
            return self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, data: bytes | bytearray) -> int:
        """Send as many bytes as possible without waiting; return their number."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def hang_up(self) -> None:
        """Shut it down, so that readers see its end. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()
