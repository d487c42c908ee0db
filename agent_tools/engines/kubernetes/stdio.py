"""A sandbox's stdin and stdout over an exec stream, as one non-blocking stream.

If the socket accepts only part of a frame, the rest is buffered, and the frame's bytes count as sent when all of it is:
until then `send` returns 0, and the caller retries when the socket is writable.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import threading
import time

import httpcore2
import httpx2
from websockets.utils import accept_key

from agent_tools.engines.engine import Stdio
from agent_tools.engines.kubernetes.api import Api, Query
from agent_tools.engines.kubernetes.exec_channels import PROTOCOLS, Channels
from agent_tools.errors import EngineError
from agent_tools.limits import KIB
from agent_tools.machine.rounds import rounds

CHUNK_BYTES = 256 * KIB
MOST_SENT = 64 * KIB  # of stdin in one frame
PING_SECONDS = (
    30.0  # seconds between two pings: load balancers and proxies close connections that are idle for a minute
)
SILENCE_SECONDS = 100.0  # seconds without a byte, pongs included, after which the other end is gone
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ExecStdio(Stdio):
    """The Stdio protocol over an exec stream. `timeout` is the limit of each wait for opening it, in seconds.

    Raises:
        ApiRefused: the server does not execute the program.
        EngineError: the answer does not come from an API server.
        EngineUnavailable: the server does not answer in time.
    """

    def __init__(self, api: Api, path: str, query: Query, timeout: float) -> None:
        self._channels = Channels()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._out = b""  # rest of a partly sent frame
        self._sending = 0  # bytes of stdin in them
        self._heard_at = self._pinged_at = time.monotonic()
        self._answer = _opened(api, path, query, timeout)
        stream = self._answer.extensions["network_stream"]
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._found = b""  # stdout bytes that came with the server's handshake
        with contextlib.suppress(httpcore2.NetworkError):
            self._found = self._channels.feed(stream.read(CHUNK_BYTES, timeout=0))
        self._socket.setblocking(False)
        self._descriptor: int = self._socket.fileno()
        rounds().add(self)

    @property
    def last_words(self) -> str:
        """Return the status and the stderr of the program."""
        return self._channels.last_words

    @property
    def has_ended(self) -> bool:
        """Return whether the program, or the stream, is at its end."""
        return self._descriptor < 0 or self._channels.has_ended

    # -- the Stdio protocol -------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._descriptor

    def receive(self) -> bytes | None:
        """Return bytes from the sandbox's stdout; b'' at the end, None if there are none yet."""
        with self._lock:
            while self._descriptor >= 0:
                if self._found:
                    found, self._found = self._found, b""
                    return found
                if self._channels.has_ended:
                    return b""
                try:
                    data = self._socket.recv(CHUNK_BYTES)
                except _LATER:
                    self._reply()
                    return None
                except OSError:
                    return b""
                self._heard_at = time.monotonic()
                self._found = self._channels.feed(data)
                self._reply()
        return b""

    def send(self, data: bytes | bytearray) -> int:
        """Send bytes without waiting; return how many were sent."""
        with self._lock:
            if not self._sending and not self._out:
                self._sending = min(len(data), MOST_SENT)
                self._channels.send(data[: self._sending])
            if not self._flush():
                return 0
            sent, self._sending = self._sending, 0
            return sent

    def close(self) -> None:
        """Close the stream, which ends the sandbox."""
        if self._descriptor < 0:
            return
        self._descriptor = -1
        if os.getpid() == self._pid:
            rounds().remove(self)
            with self._lock, contextlib.suppress(OSError):
                self._channels.hang_up()
                self._flush()
            with contextlib.suppress(OSError, httpx2.HTTPError):
                self._answer.close()
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- signs of life ------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether it is time for a ping."""
        return time.monotonic() - self._pinged_at >= PING_SECONDS

    def check(self) -> None:
        """Send a ping; close a stream whose other end has been silent for too long."""
        with self._lock, contextlib.suppress(OSError):
            self._pinged_at = time.monotonic()
            if self._descriptor < 0:
                return
            if self._pinged_at - self._heard_at > SILENCE_SECONDS:
                self._socket.shutdown(socket.SHUT_RDWR)  # the poller reads the end
                return
            self._channels.ping()
            self._flush()

    # -- the socket ---------------------------------------------------------------------------------------------------

    def _reply(self) -> None:
        """Send pongs and other waiting bytes; if the server closed its side, its last messages are still read."""
        with contextlib.suppress(OSError):
            self._flush()

    def _flush(self) -> bool:
        """Send the waiting bytes; return whether all of them were sent."""
        self._out += self._channels.outgoing()
        with contextlib.suppress(*_LATER):
            while self._out:
                sent = self._socket.send(self._out)
                self._out = self._out[sent:]
        return not self._out


def _opened(api: Api, path: str, query: Query, timeout: float) -> httpx2.Response:
    """Do the handshake of a WebSocket, RFC 6455 section 4.1."""
    key = base64.b64encode(os.urandom(16)).decode()
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": ", ".join(PROTOCOLS),
    }
    answer = api.upgrade(path, query, headers, timeout)
    if answer.headers.get("Sec-WebSocket-Accept") != accept_key(key):
        answer.close()
        raise EngineError("The server at the API server's address is not a Kubernetes API server.")
    return answer
