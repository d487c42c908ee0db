"""The streams of an executed program, as messages of a WebSocket: no sockets in here, only bytes in and out.

A message begins with the number of its channel: 0 is stdin, 1 stdout, 2 stderr, 3 how it ended, as a Status in JSON.
The protocol: `v5.channel.k8s.io` in Kubernetes' source, k8s.io/apimachinery/pkg/util/remotecommand/constants.go; v4
differs in nothing that is used here. Everything is handed on as it comes: nothing is put together, so what is held is
one frame at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from agent_tools.engines.kubernetes.api import ApiRefused, parsed, told
from agent_tools.errors import EngineError
from agent_tools.limits import KIB, MIB

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAX_MESSAGE = MIB  # of one message; servers send pieces of 32 KiB
MAX_SAID = 4 * KIB  # bytes of stderr, and of the status, that are kept: the last and the first


class Channels:
    """The client's end of one execution. Not thread-safe."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        try:
            uri = parse_uri(url)
        except InvalidURI as exc:
            raise EngineError(f"{url!r:.200} is no address for a WebSocket.") from exc
        self.address = (uri.host, uri.port)
        self._protocol = ClientProtocol(uri, subprotocols=PROTOCOLS, max_size=MAX_MESSAGE)  # type: ignore[arg-type]
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        self._channel: int | None = None  # of the message under way
        self._status = bytearray()
        self._stderr = bytearray()
        self.is_open = False
        """True once the server has agreed."""
        self.has_ended = False
        """True when nothing more comes."""

    def feed(self, data: bytes) -> bytes:
        """Take in bytes of the server, b'' for its end; return what they hold of stdout.

        Raises:
            ApiRefused: the server does not execute it.
            EngineError: what answers is no such server.
        """
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        found = bytearray()
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self.is_open = self._protocol.handshake_exc is None
            elif isinstance(event, Frame):
                self._take(event, found)
        if exc := self._protocol.handshake_exc:
            raise _refusal(exc) from exc
        self.has_ended = self.has_ended or self._protocol.parser_exc is not None or not data
        return bytes(found)

    def send(self, data: bytes | bytearray) -> None:
        """Say something on stdin.

        Raises:
            BrokenPipeError: nobody hears it any more.
        """
        if self._protocol.state is not State.OPEN:
            raise BrokenPipeError("the exec stream has ended")
        self._protocol.send_binary(bytes([STDIN]) + bytes(data))

    def ping(self) -> None:
        """Ask for a sign of life, which also keeps proxies from taking the connection for idle."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")

    def hang_up(self) -> None:
        """Say that we go."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)

    def outgoing(self) -> bytes:
        """Return the bytes for the server that have come up since the last time."""
        return b"".join(self._protocol.data_to_send())

    @property
    def last_words(self) -> str:
        """Return how it ended and what it said on stderr, in one line; '' if it said nothing."""
        said = bytes(self._stderr).decode("utf-8", "replace")
        return told(" ".join(part for part in (self._told_status(), said.strip()) if part))

    def _told_status(self) -> str:
        if not self._status:
            return ""
        try:
            status: dict[str, Any] = parsed(bytes(self._status))
        except EngineError:
            return ""
        return "" if status.get("status") == "Success" else told(status.get("message") or "it failed")

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


def _refusal(exc: Exception) -> EngineError:
    if isinstance(exc, InvalidStatus):
        try:
            said = parsed(bytes(exc.response.body or b""))
        except EngineError:
            said = {}
        message = told(said.get("message") or exc.response.reason_phrase or "")
        return ApiRefused(exc.response.status_code, str(said.get("reason") or "")[:80], message)
    return EngineError(f"What answers at the API server's address executes nothing: {told(str(exc))}")
