"""A sandbox's stdin and stdout over an exec stream, as one stream that never waits.

A frame that the socket does not take whole is kept, and its bytes count as sent when all of it is: until then whoever
sends is told that nothing went out, and comes again when the socket can be written to.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping

from agent_tools.engines.kubernetes.api import Cluster
from agent_tools.engines.kubernetes.channels import Channels
from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.limits import KIB
from agent_tools.machine.rounds import rounds

READ_SIZE = 256 * KIB
MOST_SENT = 64 * KIB  # of stdin in one frame
PING_SECONDS = 30.0  # between two pings: balancers and proxies end what is idle for a minute
SILENCE_SECONDS = 100.0  # without a byte, pongs included: the other end is gone
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ExecStdio:
    """Implements the Stdio protocol. `timeout` is how many seconds the API server may take to agree."""

    def __init__(self, cluster: Cluster, path: str, timeout: float) -> None:
        scheme, _, rest = cluster.server.partition("://")
        authorization = cluster.authorization()
        headers: Mapping[str, str] = {"Authorization": authorization} if authorization else {}
        url = f"{'wss' if scheme == 'https' else 'ws'}://{rest}{path}"
        self._channels = Channels(url, headers)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._found = b""  # of stdout, that came with the server's consent
        self._out = b""  # of frames that are not sent whole
        self._sending = 0  # bytes of stdin in them
        self._heard_at = self._pinged_at = time.monotonic()
        self._socket = _connected(cluster, self._channels.address, timeout)
        try:
            self._agree(time.monotonic() + timeout)
        except BaseException:
            self._socket.close()
            raise
        self._descriptor = self._socket.fileno()
        rounds().add(self)

    @property
    def last_words(self) -> str:
        """Return how the program ended, and what it said on stderr."""
        return self._channels.last_words

    # -- the Stdio protocol -------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._descriptor

    def writer(self) -> int:
        """Return the same descriptor."""
        return self._descriptor

    def receive(self) -> bytes | None:
        """Return what the sandbox printed to stdout, b'' at the end, None when there is nothing yet."""
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
        """Send what can be sent; the number of bytes."""
        with self._lock:
            if not self._sending and not self._out:
                self._sending = min(len(data), MOST_SENT)
                self._channels.send(data[: self._sending])
            if not self._flush():
                return 0
            sent, self._sending = self._sending, 0
            return sent

    def close(self) -> None:
        """Hang up, which ends the sandbox."""
        if self._descriptor < 0:
            return
        self._descriptor = -1
        if os.getpid() == self._pid:
            rounds().remove(self)
            with self._lock, contextlib.suppress(OSError):
                self._channels.hang_up()
                self._flush()
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- signs of life ------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether it is time for a ping."""
        return time.monotonic() - self._pinged_at >= PING_SECONDS

    def look(self) -> None:
        """Send a ping; end a stream whose other end has been silent for long."""
        with self._lock, contextlib.suppress(OSError):
            self._pinged_at = time.monotonic()
            if self._descriptor < 0:
                return
            if self._pinged_at - self._heard_at > SILENCE_SECONDS:
                self._socket.shutdown(socket.SHUT_RDWR)  # whoever polls it sees its end
                return
            self._channels.ping()
            self._flush()

    # -- the socket ---------------------------------------------------------------------------------------------------

    def _agree(self, deadline: float) -> None:
        """Exchange what opens the stream.

        Raises:
            EngineUnavailable: the server does not answer in time.
            ApiRefused: it does not execute the program.
        """
        try:
            self._socket.sendall(self._channels.outgoing())
            while not self._channels.is_open:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("no answer in time")
                self._socket.settimeout(left)
                data = self._socket.recv(READ_SIZE)
                self._found += self._channels.feed(data)
                if not data and not self._channels.is_open:
                    raise EngineError("The API server hung up before it executed anything.")
            self._socket.setblocking(False)
        except OSError as exc:
            raise EngineUnavailable(f"The Kubernetes API server opens no exec stream ({exc}).") from exc

    def _reply(self) -> None:
        """Send pongs, and whatever else waits; to a server that takes nothing any more, its last words still count."""
        with contextlib.suppress(OSError):
            self._flush()

    def _flush(self) -> bool:
        """Send what is to be sent; return whether all of it went out."""
        self._out += self._channels.outgoing()
        with contextlib.suppress(*_LATER):
            while self._out:
                sent = self._socket.send(self._out)
                self._out = self._out[sent:]
        return not self._out


def _connected(cluster: Cluster, address: tuple[str, int], timeout: float) -> socket.socket:
    try:
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms for an exchange of small frames
            if not cluster.server.startswith("https://"):
                return plain
            return cluster.tls().wrap_socket(plain, server_hostname=cluster.server_name or address[0])
        except BaseException:
            plain.close()
            raise
    except OSError as exc:
        raise EngineUnavailable(f"No Kubernetes API server answers at {address[0]}:{address[1]} ({exc}).") from exc
