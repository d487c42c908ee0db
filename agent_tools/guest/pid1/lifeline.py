"""PID 1's end of the lifeline: over a mounted unix socket, or over its own stdin and stdout.

On the first way the sockets of a kernel are made by the host and come as open descriptors with the order. On the
second, PID 1 makes them in here and carries what they say, so that the kernel cannot tell the difference.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

from ..forks import silence
from ..wire.framing import FrameError
from ..wire.lines import MAX_LINE
from ..wire.mux import Mux
from ..wire.sockets import await_room, pair
from ..wire.words import WITH_SOCKETS, Order, Ready, Report, channels, read_order, write

CHUNK_BYTES = 256 * 1024
MAX_DESCRIPTORS = 2  # that come with one order
Received = tuple[Order | None, list[int]]
"""An order, None if it is unknown, and the open descriptors that belong to it; the taker closes these."""


class SocketLifeline:
    """The host's unix socket: one datagram is one line of words."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.socket.setblocking(False)
        self.is_open = True

    def watched(self) -> tuple[list[int], list[int]]:
        """Return the descriptors to wait for: to read from, and to write to."""
        return [self.socket.fileno()], []

    def exchange(self, ready: set[int]) -> Iterator[Received]:
        """Yield all orders that have come: whether an interrupt is still due is known after the last of them.

        Each is read once the one before it is carried out, so that no fork has descriptors of another order.
        """
        while self.is_open and self.socket.fileno() in ready:
            try:
                line, descriptors, _, _ = socket.recv_fds(
                    self.socket, MAX_LINE, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            self.is_open = bool(line)
            yield read_order(line), list(descriptors)

    def say(self, report: Report, timeout: float = 0.0) -> None:
        """Send the host a report; wait up to `timeout` seconds if it does not read."""
        with contextlib.suppress(OSError):
            if timeout > 0:
                await_room(self.socket.fileno(), timeout)
            self.socket.send(write(report), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Let go of it, in a fork."""
        self.socket.close()


def take_stdio() -> tuple[int, int]:
    """Return duplicates of stdin and stdout, and replace both by /dev/null for later processes."""
    stdin, stdout = os.dup(0), os.dup(1)
    silence(0, 1)
    return stdin, stdout


class StdioLifeline:
    """Two descriptors, to read and to write: words and the kernel's channels as frames (see mux.py)."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin, self.stdout = stdin, stdout
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stdout, False)
        self.mux = Mux()
        self.is_open = True
        self.say(Ready())

    def watched(self) -> tuple[list[int], list[int]]:
        """Return the descriptors to wait for: to read from, and to write to."""
        readers, writers = self.mux.wants()
        return (
            [self.stdin, *(end.fileno() for end in readers)],
            [*([self.stdout] if self.mux.out else []), *(end.fileno() for end in writers)],
        )

    def exchange(self, ready: set[int]) -> Iterator[Received]:
        """Yield received orders, as `SocketLifeline` does, and transfer data of the channels."""
        if self.stdin in ready:
            yield from self._read()
        self.mux.exchange(ready)
        self._write()

    def say(self, report: Report, timeout: float = 0.0) -> None:
        """Tell the host, after all that the channels had to say: what a kernel sent last comes before its end."""
        self.mux.drain()
        self.mux.say(write(report))
        self._write()

    def close(self) -> None:
        """Let go of it, in a fork."""
        self.mux.close_all()
        os.close(self.stdin)
        os.close(self.stdout)

    def _read(self) -> Iterator[Received]:
        data, self.is_open = self._received()
        orders = self.mux.feed(data)
        while self.is_open:
            try:
                line = next(orders)
            except StopIteration:
                return
            except FrameError:
                self.is_open = False
            else:
                yield self._with_sockets(read_order(line))

    def _received(self) -> tuple[bytes, bool]:
        """Return the bytes that have come, and whether more may."""
        try:
            data = os.read(self.stdin, CHUNK_BYTES)
        except BlockingIOError:
            return b"", True
        except OSError:
            return b"", False
        return data, bool(data)

    def _write(self) -> None:
        try:
            while self.mux.out:
                del self.mux.out[: os.write(self.stdout, self.mux.out)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False

    def _with_sockets(self, order: Order | None) -> Received:
        """Make the sockets that come along with an order on the other way; refuse one for which there are none."""
        if not isinstance(order, WITH_SOCKETS):
            return order, []
        theirs = list[int]()
        try:
            for channel in channels(order):
                theirs.append(self._pair(channel))
        except OSError:
            for descriptor in theirs:
                os.close(descriptor)
            for channel in channels(order):
                self.mux.refuse(channel)
            return None, []
        return order, theirs

    def _pair(self, channel: int) -> int:
        ours, theirs = pair()
        self.mux.open(channel, ours)
        return theirs.detach()
