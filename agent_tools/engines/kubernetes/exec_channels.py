"""The streams of an executed program, as WebSocket messages, without a socket: only bytes in and out.

A message begins with the number of its channel: 0 is stdin, 1 stdout, 2 stderr, 3 how it ended, as a Status in JSON.
The protocol: `v5.channel.k8s.io` in Kubernetes' source, k8s.io/apimachinery/pkg/util/remotecommand/constants.go; v4
differs in nothing that is used here. Data is passed on as it comes, so at most one frame is in memory.
"""

from __future__ import annotations

from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from agent_tools.engines.kubernetes.answers import parsed, readable
from agent_tools.errors import EngineError
from agent_tools.limits import KIB, MIB

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
