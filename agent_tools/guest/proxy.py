"""The sandbox's end of its egress allowlist: a port on the loopback, whose connections are carried to the host.

It has no policy and no name service: the host reads, allows and makes the connections.

    host  -> guest   one frame: PEM certificates      written to a file that the environment names to clients
    guest -> host    READY
    then both ways   frames (mux.py): one channel for each connection, which begins with the first bytes of the
                     connection and ends with an empty frame of either side. This end numbers them from 1 up in the
                     order of their first bytes: clients open connections that speak later, or never. No words.
"""

import contextlib
import os
import select
import socket

from .wire.framing import FrameError, read_frame
from .wire.mux import WORDS, Mux

PORT = 3128
CERTIFICATES = "/opt/session/certificates.pem"  # in the sandbox's own memory; the environment of clients names it
MAX_CERTIFICATES = 8 * 1024 * 1024
MAX_CONNECTIONS = 128  # at once; more wait in the port's queue
CHUNK_BYTES = 256 * 1024
READY = b"\1"


def listen() -> socket.socket:
    """Return a socket that listens on the proxy's port."""
    return socket.create_server(("127.0.0.1", PORT), backlog=MAX_CONNECTIONS)


def serve(descriptor: int, listener: socket.socket, certificates: str = CERTIFICATES) -> None:
    """Carry connections until the host hangs up. Write the certificates that the host trusts to `certificates`."""
    with socket.socket(fileno=os.dup(descriptor)) as host, listener:
        _keep(_read_certificates(host), certificates)
        host.sendall(READY)
        host.setblocking(False)
        listener.setblocking(False)
        Carrier(host, listener).run()


def _read_certificates(host: socket.socket) -> bytes:
    with host.makefile("rb") as stream:  # the host sends nothing more before READY
        return read_frame(stream.read, {WORDS: MAX_CERTIFICATES}.get)[1]


def _keep(content: bytes, path: str) -> None:
    """Replace a file, which code may have made; do nothing where the sandbox has no such folder."""
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "wb") as file:
            file.write(content)
        os.replace(f"{path}.new", path)


class Carrier:
    """Moves bytes between the connections and the host's socket, in one thread that never waits for one of them."""

    def __init__(self, host: socket.socket, listener: socket.socket) -> None:
        self.host = host
        self.listener = listener
        self.mux = Mux()
        self.silent: dict[int, socket.socket] = {}  # connections without a first byte, by descriptor
        self.opened = 0

    def run(self) -> None:
        """Carry connections until the host hangs up, and close them."""
        with contextlib.suppress(OSError, FrameError):
            while True:
                self.turn(self.poll())
        self.mux.close_all()
        for end in self.silent.values():
            end.close()

    def turn(self, ready: set[int]) -> None:
        """Move bytes of the descriptors that are ready."""
        if self.host.fileno() in ready:
            self.read_host()
        if self.listener.fileno() in ready:
            self.accept()
        self.begin(ready)
        self.mux.exchange(ready)
        self.write_host()

    def poll(self) -> set[int]:
        """Wait for descriptors that are ready, and return them."""
        readers, writers = self.mux.wants()
        events = {self.host.fileno(): select.POLLIN | (select.POLLOUT if self.mux.out else 0)}
        if len(self.mux.streams) + len(self.silent) < MAX_CONNECTIONS:
            events[self.listener.fileno()] = select.POLLIN
        events.update(dict.fromkeys(self.silent, select.POLLIN))
        for wanted, mask in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for end in wanted:
                events[end.fileno()] = events.get(end.fileno(), 0) | mask
        poller = select.poll()
        for descriptor, mask in events.items():
            poller.register(descriptor, mask)
        return {descriptor for descriptor, _ in poller.poll()}

    def accept(self) -> None:
        """Accept one connection."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            end, _ = self.listener.accept()
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.silent[end.fileno()] = end

    def begin(self, ready: set[int]) -> None:
        """Open a channel for each connection that has sent its first bytes."""
        for descriptor in ready & self.silent.keys():
            self.opened += 1
            self.mux.open(self.opened, self.silent.pop(descriptor))

    def read_host(self) -> None:
        """Read frames of the host."""
        with contextlib.suppress(BlockingIOError):
            data = self.host.recv(CHUNK_BYTES)
            if not data:
                raise OSError("the host hung up")
            for _ in self.mux.feed(data):
                raise FrameError("there are no words here")

    def write_host(self) -> None:
        """Write frames as far as the host takes them."""
        with contextlib.suppress(BlockingIOError):
            while self.mux.out:
                del self.mux.out[: self.host.send(self.mux.out)]
