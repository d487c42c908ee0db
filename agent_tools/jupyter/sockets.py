"""The five ZeroMQ sockets of a kernel: https://jupyter-client.readthedocs.io/en/stable/messaging.html#introduction.

A client that does not read must not stop the code: ZeroMQ drops messages beyond a number. The bytes of all messages in
its queues are limited here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

import zmq

from agent_tools.jupyter.connection import Channel, ConnectionInfo
from agent_tools.limits import KIB, MIB

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
