"""The five ZeroMQ sockets of a kernel: https://jupyter-client.readthedocs.io/en/stable/messaging.html#introduction.

A client that does not read must not stop the code: ZeroMQ drops messages beyond a number. The bytes of all messages in
its queues are limited here.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import zmq
from jupyter_client.session import DELIM, Session

from agent_tools.errors import ProtocolViolation
from agent_tools.guest.wire.messages import MAX_PARTS, MIN_PARTS
from agent_tools.jupyter.connection import Channel, ConnectionInfo
from agent_tools.limits import KIB, MIB
from agent_tools.text import has_more_parts

# Jupyter's messages as frames: those of clients are read, once their signature is right; those to clients are signed.
#
# Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html#the-wire-protocol

MAX_HEADER_BYTES = 64 * 1024  # of a header or a parent header
MAX_METADATA_BYTES = MIB  # a notebook names the cells that were deleted
MAX_IDENTITIES = 16  # frames before the delimiter
MAX_REQUEST_BYTES = 64 * MIB  # of one message
MAX_MARKS = 500_000  # commas and opening brackets of a content: each can become an object


class BadRequest(ProtocolViolation):
    """A client sent a malformed message, or one with a wrong signature."""


@dataclass(frozen=True)
class ClientRequest:
    """One message of a client."""

    channel: str
    identities: tuple[bytes, ...]
    kind: str
    id: str
    parts: tuple[bytes, ...]
    """Header, parent header, metadata and content as JSON objects; buffers."""
    content: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    """Why only its header was read; '' if all of it was."""

    @property
    def header(self) -> bytes:
        """The header as the client wrote it."""
        return self.parts[0]

    @property
    def size(self) -> int:
        """Bytes of its parts."""
        return sum(map(len, self.parts))

    @property
    def reply_kind(self) -> str:
        """The type of the reply, '' for a message that gets none."""
        return self.kind.removesuffix("_request") + "_reply" if self.kind.endswith("_request") else ""


class SignedFrames:
    """Reads and writes the frames of one kernel's clients."""

    def __init__(self, key: bytes, scheme: str) -> None:
        self._session = Session(key=key, signature_scheme=scheme, username="kernel")

    def read(self, channel: str, frames: list[bytes]) -> ClientRequest:
        """Return the message of a client.

        Raises:
            BadRequest: it is malformed, or is not signed with the key.
        """
        try:
            place = frames.index(DELIM, 0, MAX_IDENTITIES + 1)
            identities, parts = frames[:place], frames[place + 1 :]
            if reason := _too_costly(parts):
                return self._unread(channel, tuple(identities), parts, reason)
            message = self._session.deserialize(parts)
            header, content = message["header"], message["content"]
            kind, id_ = header["msg_type"], header["msg_id"]
        except BadRequest:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as exc:
            raise BadRequest(f"a malformed message ({type(exc).__name__}: {exc!s:.100})") from exc
        if not isinstance(kind, str) or not isinstance(id_, str) or not isinstance(content, dict):
            raise BadRequest("a message without a type, an id or a content")
        return ClientRequest(channel, tuple(identities), kind, id_, tuple(parts[1:]), content)

    def _unread(self, channel: str, identities: tuple[bytes, ...], parts: list[bytes], reason: str) -> ClientRequest:
        """Return a message with only its header parsed, since its sender waits for an answer.

        Raises:
            BadRequest: it is not signed with the key, or its header is too long, too.
        """
        if len(parts) <= MIN_PARTS or len(parts[1]) > MAX_HEADER_BYTES or not self._is_signed(parts):
            raise BadRequest(f"a message with {reason}")
        header = json.loads(parts[1])
        kind, id_ = header["msg_type"], header["msg_id"]
        if not isinstance(kind, str) or not isinstance(id_, str):
            raise BadRequest("a message without a type or an id")
        return ClientRequest(channel, identities, kind, id_, (parts[1], b"{}", b"{}", b"{}"), {}, f"It has {reason}.")

    def _is_signed(self, parts: list[bytes]) -> bool:
        return self._session.auth is None or hmac.compare_digest(self._session.sign(parts[1:5]), parts[0])

    def write(
        self,
        kind: str,
        parent: bytes,
        content: bytes | Mapping[str, Any],
        metadata: bytes = b"{}",
        buffers: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return the frames of a message of the kernel, without identities. `parent` is the header of its request."""
        header = self._session.pack(self._session.msg_header(kind))
        packed = content if isinstance(content, bytes) else json.dumps(content).encode()
        signed = [header, parent or b"{}", metadata, packed]
        return [DELIM, self._session.sign(signed), *signed, *buffers]


def _too_costly(parts: Sequence[bytes]) -> str:
    """Return why a message would cost too much to parse; '' if it would not."""
    if len(parts) - 1 > MAX_PARTS:
        return f"more than {MAX_PARTS} parts"
    if sum(map(len, parts)) > MAX_REQUEST_BYTES:
        return f"more than {MAX_REQUEST_BYTES:,} bytes"
    if any(len(part) > MAX_HEADER_BYTES for part in parts[1:3]) or len(b"".join(parts[3:4])) > MAX_METADATA_BYTES:
        return "a header, or metadata, that is too long"
    if has_more_parts(b"".join(parts[4:5]), MAX_MARKS):
        return f"more than {MAX_MARKS:,} commas and brackets"
    return ""


MAX_FRAME_BYTES = 64 * MIB  # from a client; ZeroMQ hangs up on one that sends more
MAX_UNSENT_BYTES = 256 * MIB  # of published messages that clients have not taken yet
COUNTED_BYTES = 64 * KIB  # of a message; shorter ones are bounded by their number, 1000 for each client
LINGER = 250  # milliseconds for what was sent before the sockets close
FRAMES_AT_ONCE = 100  # messages taken from one socket before others have their turn
Heard = tuple[Literal["shell", "control", "stdin", "iopub"], list[bytes]]
"""A message of a client, or, on iopub, what a client subscribes to."""


class KernelSockets:
    """Bound while it is entered. For one thread."""

    def __init__(self, info: ConnectionInfo) -> None:
        self._info = info
        self._context = zmq.Context()
        self._unsent: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._unsent_bytes = 0

    def __enter__(self) -> KernelSockets:
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        try:
            for channel in ("shell", "control", "stdin"):
                self._sockets[channel] = self._bound(channel, zmq.ROUTER)
            self._sockets["iopub"] = self._bound("iopub", zmq.XPUB)
            self._beat = threading.Thread(target=_echo, args=(self._bound("hb", zmq.ROUTER),), daemon=True)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        for socket in self._sockets.values():
            socket.close(linger=LINGER)
        self._context.term()  # which ends the heartbeat's thread
        self._beat.join()

    def await_input(self, descriptors: Sequence[int], *, with_shell: bool) -> set[int]:
        """Wait for clients, on the shell channel if wanted, or for descriptors; return the ready ones of these."""
        poller = zmq.Poller()
        for channel, socket in self._sockets.items():
            if channel != "shell" or with_shell:
                poller.register(socket, zmq.POLLIN)
        for descriptor in descriptors:
            poller.register(descriptor, zmq.POLLIN)
        return {ready for ready, _ in poller.poll() if isinstance(ready, int)}

    def receive(self, *, with_shell: bool = True) -> Iterator[Heard]:
        """Yield what clients have sent."""
        for channel in ("control", "stdin", "iopub", "shell")[: 4 if with_shell else 3]:
            socket = self._sockets[channel]
            for _ in range(FRAMES_AT_ONCE):
                if not socket.poll(0):
                    break
                yield channel, socket.recv_multipart()  # type: ignore[misc]

    def send(self, channel: Literal["shell", "control", "stdin"], frames: Sequence[bytes]) -> None:
        """Send a message to the client that the first frames name; it is dropped if the client has disconnected."""
        self._sockets[channel].send_multipart(frames)

    def publish(self, frames: Sequence[bytes]) -> bool:
        """Send a message to all clients; return False if it was dropped because too many bytes wait for them."""
        size = sum(map(len, frames))
        if size < COUNTED_BYTES:
            self._sockets["iopub"].send_multipart(frames)
            return True
        while self._unsent and self._unsent[0][0].done:
            self._unsent_bytes -= self._unsent.popleft()[1]
        if self._unsent_bytes + size > MAX_UNSENT_BYTES:
            return False
        tracker = self._sockets["iopub"].send_multipart(frames, copy=False, track=True)
        assert tracker
        self._unsent.append((tracker, size))
        self._unsent_bytes += size
        return True

    def _bound(self, channel: Channel, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = LINGER
        socket.maxmsgsize = MAX_FRAME_BYTES
        if kind == zmq.ROUTER:
            socket.router_handover = 1  # a client that comes back is the same one
        try:
            socket.bind(self._info.address(channel))
        except zmq.ZMQError as exc:
            raise OSError(exc.errno, f"The {channel} socket {self._info.address(channel)}: {exc.strerror}") from exc
        return socket


def _echo(socket: zmq.Socket[bytes]) -> None:
    """Answer heartbeats until the context is ended."""
    try:
        zmq.proxy(socket, socket)
    except zmq.ContextTerminated:
        socket.close(linger=0)
