"""How PID 1 hears its host and gets the kernel's sockets: over a mounted unix socket, or over its own stdin and stdout.

Both ends of a kernel's channels are host business on the first way: they come as open descriptors with the order. On
the second, PID 1 makes them in here and carries what they say, so that the kernel cannot tell the difference.
"""

import contextlib
import os
import socket

from .wire.mux import Mux, MuxError

MAX_WORDS = 4096  # bytes in one line
READ_SIZE = 256 * 1024
Order = tuple[list[str], list[int]]
"""The words, and the open descriptors that belong to them; the taker closes these."""


class SocketLifeline:
    """The host's unix socket: one datagram is one line of words."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.is_open = True

    def watched(self) -> tuple[list[int], list[int]]:
        """What to wait for: descriptors to read from, and to write to."""
        return [self.socket.fileno()], []

    def exchange(self, ready: set[int]) -> list[Order]:
        """The orders that have come."""
        if self.socket.fileno() not in ready:
            return []
        data, descriptors, _, _ = socket.recv_fds(self.socket, MAX_WORDS, 3)
        self.is_open = bool(data)
        return [(data.decode("ascii", "replace").split(), list(descriptors))]

    def say(self, words: str) -> None:
        """Tell the host; one that does not listen is not waited for."""
        self.socket.setblocking(False)
        with contextlib.suppress(OSError):
            self.socket.send(words.encode("ascii", "replace")[:MAX_WORDS])
        self.socket.setblocking(True)

    def close(self) -> None:
        """Let go of it, in a fork."""
        self.socket.close()


class StdioLifeline:
    """Stdin and stdout: words and the kernel's channels as frames (see mux.py)."""

    def __init__(self) -> None:
        self.stdin, self.stdout = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stdout, False)
        self.mux = Mux()
        self.is_open = True
        self.say("ready")

    def watched(self) -> tuple[list[int], list[int]]:
        """What to wait for: descriptors to read from, and to write to."""
        readers, writers = self.mux.wants()
        return (
            [self.stdin, *(end.fileno() for end in readers)],
            [*([self.stdout] if self.mux.out else []), *(end.fileno() for end in writers)],
        )

    def exchange(self, ready: set[int]) -> list[Order]:
        """Carry what the channels say, and return the orders that have come."""
        orders = self._read() if self.stdin in ready else []
        self.mux.exchange(ready)
        self._write()
        return orders

    def say(self, words: str) -> None:
        """Tell the host, after all that the channels had to say: what a kernel sent last comes before its end."""
        self.mux.drain()
        self.mux.say(words.encode("ascii", "replace")[:MAX_WORDS])
        self._write()

    def close(self) -> None:
        """Let go of it, in a fork."""
        self.mux.close_all()
        os.close(self.stdin)
        os.close(self.stdout)

    def _read(self) -> list[Order]:
        try:
            data = os.read(self.stdin, READ_SIZE)
            self.is_open = bool(data)
            return [self._order(line.decode("ascii", "replace").split()) for line in self.mux.feed(data)]
        except BlockingIOError:
            return []
        except (OSError, MuxError):
            self.is_open = False
            return []

    def _write(self) -> None:
        try:
            while self.mux.out:
                del self.mux.out[: os.write(self.stdout, self.mux.out)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False

    def _order(self, words: list[str]) -> Order:
        """Put the descriptors to an order that the other way sends along with it."""
        match words:
            case ["start", generation, _]:
                first = 3 * int(generation)
                return words, [self._listen(first), self._listen(first + 1), self._pair(first + 2)]
            case ["files", number]:
                return words, [self._pair(3 * int(number))]
        return words, []

    def _listen(self, channel: int) -> int:
        """A listening socket for libzmq, to which the channel is connected already."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(b"\0" + os.urandom(16).hex().encode())  # by hand: gVisor picks no name of its own
            listener.listen(1)
            end = socket.socket(socket.AF_UNIX)
            end.connect(listener.getsockname())
            self.mux.open(channel, end)
            return listener.detach()

    def _pair(self, channel: int) -> int:
        ours, theirs = socket.socketpair()
        self.mux.open(channel, ours)
        return theirs.detach()
