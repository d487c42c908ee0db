"""Two ends within this process over which words go whole and in order, on systems without SOCK_SEQPACKET, too.

The words lie in a queue; a byte through a pair of stream sockets tells of each, so that both ends can be polled, and
each sees the other hang up after it has heard the last word.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Union

MAX_WAITING = 256  # words that nobody has taken yet


def datagram_pair() -> tuple[DatagramEnd, DatagramEnd]:
    """Make two ends, each of which hears what the other says."""
    one, other = socket.socketpair()
    there: deque[bytes] = deque()
    back: deque[bytes] = deque()
    return DatagramEnd(one, back, there), DatagramEnd(other, there, back)


class DatagramEnd:
    """One end, which is used as a SEQPACKET socket. Several threads may send; one at a time receives."""

    def __init__(self, bell: socket.socket, coming: deque[bytes], going: deque[bytes]) -> None:
        self._bell = bell
        self._coming = coming
        self._going = going
        self._lock = threading.Lock()  # a byte that cannot be sent takes its own words back

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._bell.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """Have `recv` wait, or raise BlockingIOError."""
        self._bell.setblocking(flag)

    def send(self, words: bytes, /) -> int:
        """Send all of it. Raises OSError, and BlockingIOError where too much waits."""
        with self._lock:
            if len(self._going) >= MAX_WAITING:
                raise BlockingIOError
            self._going.append(words)
            try:
                self._bell.send(b"\0")
            except OSError:
                self._going.pop()
                raise
        return len(words)

    def recv(self, most: int, /) -> bytes:
        """Take the next words, cut at `most` bytes; b'' at the end. Raises OSError."""
        return self._coming.popleft()[:most] if self._bell.recv(1) else b""

    def close(self) -> None:
        """Hang up."""
        self._bell.close()


DatagramSocket = Union[DatagramEnd, socket.socket]
"""One end: of `datagram_pair`, or a SEQPACKET socket."""
