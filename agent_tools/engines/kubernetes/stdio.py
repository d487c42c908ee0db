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
from typing import Any

import httpcore2
import httpx2
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from agent_tools.engines.kubernetes.answers import parsed, readable
from agent_tools.engines.kubernetes.api import Api, Query
from agent_tools.errors import EngineError
from agent_tools.limits import KIB, MIB
from agent_tools.machine.rounds import rounds

# The streams of an executed program, as WebSocket messages, without a socket: only bytes in and out.
#
# A message begins with the number of its channel: 0 is stdin, 1 stdout, 2 stderr, 3 how it ended, as a Status in JSON.
# The protocol: `v5.channel.k8s.io` in Kubernetes' source, k8s.io/apimachinery/pkg/util/remotecommand/constants.go; v4
# differs in nothing that is used here. Data is passed on as it comes, so at most one frame is in memory.

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAX_MESSAGE = MIB  # of one message; servers send pieces of 32 KiB
MAX_SAID = 4 * KIB  # bytes of stderr, and of the status, that are kept: the last and the first


class Channels:
    """The client's side of one executed program. Not thread-safe."""

    def __init__(self) -> None:
        self._protocol = Protocol(Side.CLIENT, max_size=MAX_MESSAGE)
        self._channel: int | None = None  # of the current message
        self._status = bytearray()
        self._stderr = bytearray()
        self.has_ended = False
        """True when nothing more comes."""

    def feed(self, data: bytes) -> bytes:
        """Decode bytes of the server, b'' for its end; return the stdout bytes in them."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        found = bytearray()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event, found)
        self.has_ended = self.has_ended or self._protocol.parser_exc is not None or not data
        return bytes(found)

    def send(self, data: bytes | bytearray) -> None:
        """Send bytes to stdin.

        Raises:
            BrokenPipeError: the stream has ended.
        """
        if self._protocol.state is not State.OPEN:
            raise BrokenPipeError("the exec stream has ended")
        self._protocol.send_binary(bytes([STDIN]) + bytes(data))

    def ping(self) -> None:
        """Send a ping, which also keeps proxies from closing the connection as idle."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")

    def hang_up(self) -> None:
        """Send a close message."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)

    def outgoing(self) -> bytes:
        """Return the new bytes for the server."""
        return b"".join(self._protocol.data_to_send())

    @property
    def last_words(self) -> str:
        """Return the status and the stderr of the program, in one line; '' if there are none."""
        said = bytes(self._stderr).decode("utf-8", "replace")
        return readable(" ".join(part for part in (self._status_text(), said.strip()) if part))

    def _status_text(self) -> str:
        if not self._status:
            return ""
        try:
            status: dict[str, Any] = parsed(bytes(self._status))
        except EngineError:
            return ""
        return "" if status.get("status") == "Success" else readable(status.get("message") or "it failed")

    def _take(self, frame: Frame, found: bytearray) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            data = bytes(frame.data)
            if frame.opcode is not Opcode.CONT:
                self._channel = None
            if self._channel is None and data:
                self._channel, data = data[0], data[1:]
            self._hear(data, found)
            if frame.fin:
                self._channel = None
        elif frame.opcode is Opcode.CLOSE:
            self.has_ended = True

    def _hear(self, data: bytes, found: bytearray) -> None:
        if self._channel == STDOUT:
            found += data
        elif self._channel == STDERR:
            self._stderr = bytearray((self._stderr + data)[-MAX_SAID:])
        elif self._channel == STATUS and data:  # an empty message on each channel opens the stream
            self._status += data[: MAX_SAID - len(self._status)]
            self.has_ended = True


READ_SIZE = 256 * KIB
MOST_SENT = 64 * KIB  # of stdin in one frame
PING_SECONDS = (
    30.0  # seconds between two pings: load balancers and proxies close connections that are idle for a minute
)
SILENCE_SECONDS = 100.0  # seconds without a byte, pongs included, after which the other end is gone
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ExecStdio:
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
            self._found = self._channels.feed(stream.read(READ_SIZE, timeout=0))
        self._socket.setblocking(False)
        self._descriptor: int = self._socket.fileno()
        rounds().add(self)

    @property
    def last_words(self) -> str:
        """Return the status and the stderr of the program."""
        return self._channels.last_words

    # -- the Stdio protocol -------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._descriptor

    def writer(self) -> int:
        """Return the same descriptor."""
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
                    data = self._socket.recv(READ_SIZE)
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

    def look(self) -> None:
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
