"""The connection between a caller and a node: one for each sandbox, whose stdin and stdout it becomes.

    caller -> node   the token (TOKEN_BYTES, ASCII), then one request (greeting.py)
    node -> caller   empty messages while it works, then one answer
    both ways        after the answer to `start`, the bytes of the sandbox's stdin and stdout until one side closes

It is TLS 1.3. A node makes a certificate for itself when it starts, and callers trust this one alone. The end of the
connection ends the sandbox. A close without TLS's goodbye means that the other process, or its machine, is gone.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from agent_tools.engines.engine import Stdio, StreamLost
from agent_tools.limits import KIB, MIB

MAX_REQUEST = MIB  # bytes: the environment of a sandbox is the largest part
MAX_ANSWER = 64 * KIB  # bytes
GREETING_SECONDS = 10.0  # to connect, to agree on TLS, and to send the token and the request
BEAT_SECONDS = 5.0  # between two empty messages of a node that works
CHUNK_BYTES = 256 * KIB
MOST_SENT = 64 * KIB  # of one piece, so that a retry sends the same bytes, as TLS wants
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LinkStdio(Stdio):
    """Implements the Stdio protocol on a TLS connection, which it owns. `peer` names the other side in errors."""

    def __init__(self, connection: ssl.SSLSocket, peer: str) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._peer = peer
        self._is_hung_up = False
        self.has_ended = False
        """True once the stream has ended, in any way."""

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._connection.fileno()

    def receive(self) -> bytes | None:
        """Return received bytes; b'' at the end, None if there are none yet.

        Raises:
            StreamLost: the other side is gone without a goodbye.
        """
        try:
            data = self._connection.recv(CHUNK_BYTES)
        except _LATER:
            return None
        except OSError as exc:
            self.has_ended = True
            if self._is_hung_up:
                return b""
            raise self._lost() from exc
        self.has_ended = self.has_ended or not data
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Send bytes without waiting; return how many were sent. Raises StreamLost."""
        try:
            return self._connection.send(bytes(data[:MOST_SENT]))
        except _LATER:
            return 0
        except OSError as exc:
            raise self._lost() from exc

    def _lost(self) -> StreamLost:
        return StreamLost(f"the connection to {self._peer} was lost")

    def hang_up(self) -> None:
        """End the stream, so that its reader and the other side see its end. Any thread may call it."""
        self._is_hung_up = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # not TLS's, which another thread may be using

    def say_goodbye(self) -> None:
        """Tell the other side that nothing more comes."""
        with contextlib.suppress(OSError, ValueError):
            self._connection.unwrap()

    def close(self) -> None:
        """Close it."""
        self._connection.close()
