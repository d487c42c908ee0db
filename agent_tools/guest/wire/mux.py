"""Several byte streams and the lifeline's messages over one pipe, for both ends of the stdio transport.

    kind      of a frame (framing.py): the channel
    channel 0 one frame is one line of words (words.py)
    other     bytes of that stream; an empty payload ends it
    CREDIT|n  u32: so many more bytes may be sent on channel n

Theory of operation: a channel is a socket at each end. The bytes that a socket has are read only while the pipe has
room for them (MAX_OUT) and the other end has granted them (`may_send`); the bytes that come for a socket wait in
`pending`, and are granted anew once it has taken them. The pipe's own back-pressure does the rest.

Neither end sends more on a channel than the other has granted, so a stream that is not read holds up no other, and
neither end ever buffers more than WINDOW bytes of a stream. Nothing in here waits. Standard library only.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator

from .framing import HEADER, FrameError, FrameReader, Window, pack

MAX_FRAME = 64 * 1024
MAX_OUT = 4 * 1024 * 1024  # bytes waiting for the pipe, from which on streams are not read
WORDS = 0
CREDIT, CREDIT_BYTES = 0x80000000, 4


def frames() -> "FrameReader[tuple[int, bytes]]":
    """Return what cuts a pipe into frames: the channel and the payload of each."""
    return FrameReader(lambda _: MAX_FRAME, _frame)


def _frame(channel: int, payload: bytes) -> tuple[int, bytes]:
    if channel & CREDIT and len(payload) != CREDIT_BYTES:
        raise FrameError("a malformed grant")
    return channel, payload


def credit(channel: int, granted: int) -> bytes:
    """Return the frame that grants this many more bytes on a channel."""
    return pack(CREDIT | channel, granted.to_bytes(CREDIT_BYTES, "big"))


class MuxStream:
    """One stream's end on this side: a socket, and its pending bytes."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end
        self.pending = bytearray()  # came for the socket, which has not taken it yet
        self.window = Window()
        self.is_ended = False  # the other side will send no more

    def read_frame(self, channel: int) -> bytes:
        """Read bytes of the socket within the credit; return them as a frame, b'' if there are none."""
        try:
            data = self.end.recv(min(MAX_FRAME, self.window.may_send))
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.window.may_send -= len(data)
        return pack(channel, data)

    def write_pending(self, channel: int) -> bytes:
        """Write pending bytes to the socket; return a frame that grants as many, b'' while they are few."""
        with contextlib.suppress(BlockingIOError):
            sent = self.end.send(self.pending)
            del self.pending[:sent]
            if granted := self.window.consume(sent):
                return credit(channel, granted)
        return b""


class Mux:
    """The streams of one pipe. The owner passes received bytes to `feed`, and writes `out` to the pipe when it can.

    `forget` is called with the descriptor of every socket before it is closed.
    """

    def __init__(self, forget: "Callable[[int], object]" = bool) -> None:
        self._forget = forget
        self.out = bytearray()
        self.streams: dict[int, MuxStream] = {}
        self._frames = frames()

    def open(self, channel: int, end: socket.socket) -> None:
        """Connect the socket `end` to this channel; it is closed with the channel."""
        self.streams[channel] = MuxStream(end)

    def refuse(self, channel: int) -> None:
        """End a channel that the other side has opened."""
        self.close(channel)
        self.out += pack(channel, b"")

    def say(self, words: bytes) -> None:
        """Send one message of the lifeline."""
        self.out += pack(WORDS, words)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode bytes of the pipe; yield each message of the lifeline before reading the bytes after it.

        So the owner can open a channel that a line asks for before the first bytes for it are read. Read it to its end.

        Raises:
            FrameError: it is not this protocol, or more than was granted.
        """
        for channel, payload in self._frames.feed(data):
            if channel == WORDS:
                yield payload
            else:
                self._accept(channel, payload)

    def wants(self) -> tuple[list[socket.socket], list[socket.socket]]:
        """Return the sockets to wait for: to read from, and to write to."""
        has_room = len(self.out) < MAX_OUT
        streams = self.streams.values()
        readers = [stream.end for stream in streams if has_room and stream.window.may_send and not stream.is_ended]
        return readers, [stream.end for stream in streams if stream.pending]

    def exchange(self, ready: set[int]) -> None:
        """Transfer bytes of the sockets whose descriptors are ready."""
        for channel, stream in list(self.streams.items()):
            if stream.end.fileno() not in ready:
                continue
            try:
                if stream.pending:
                    self.out += stream.write_pending(channel)
            except OSError:
                stream.pending.clear()  # nobody reads it; what the socket said before its end is still to be taken
            if stream.is_ended:
                self._close_drained(channel, stream)
            elif len(self.out) < MAX_OUT:
                self._take(channel, stream)

    def drain(self) -> None:
        """Send all bytes of the sockets within the credit, so that the next message comes after them."""
        for channel, stream in list(self.streams.items()):
            while not stream.is_ended and self._take(channel, stream):
                pass

    def close(self, channel: int) -> None:
        """Drop a channel without a message."""
        stream = self.streams.pop(channel, None)
        if stream:
            self._forget(stream.end.fileno())
            stream.end.close()

    def close_all(self) -> None:
        """Drop every channel."""
        for channel in list(self.streams):
            self.close(channel)

    def _take(self, channel: int, stream: MuxStream) -> bool:
        """Move one frame from a socket to the pipe; return whether there may be more."""
        frame = stream.read_frame(channel) if stream.window.may_send else b""
        self.out += frame
        if len(frame) == HEADER.size:  # the socket's end
            self.close(channel)
        return len(frame) > HEADER.size

    def _accept(self, channel: int, payload: bytes) -> None:
        """Handle one frame of a stream; frames for a closed stream are dropped."""
        stream = self.streams.get(channel & ~CREDIT)
        if stream is None:
            return
        if channel & CREDIT:
            stream.window.grant(int.from_bytes(payload, "big"))
        elif payload:
            if not stream.window.receive(len(payload)):
                raise FrameError("more than was granted")
            stream.pending += payload
            with contextlib.suppress(OSError):  # a socket that is gone is noticed when it is polled
                self.out += stream.write_pending(channel)
        else:
            stream.is_ended = True
            self._close_drained(channel, stream)

    def _close_drained(self, channel: int, stream: MuxStream) -> None:
        if not stream.pending:
            self.close(channel)
