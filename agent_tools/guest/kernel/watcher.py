"""The one thread beside the main thread."""

import array
import contextlib
import fcntl
import os
import select
import termios
import time

from ..checkpoints.blockers import OurThread
from ..wire.sockets import await_room
from .message_writer import MessageWriter
from .streams import OutputStream, UnsentText

TICK = 0.1  # seconds that printed text waits for more at most
PIPE_PAUSE = 0.005  # seconds that text waits for more in a pipe, where it outlives this process
MUCH_IN_PIPE = 32 * 1024  # bytes from which on text does not wait, or its writer would have to
LINGER = 2.0  # seconds after printed text during which the next one need not wake the thread


class Watcher:
    """Watches the descriptors of both streams, the forked children and the queue of messages."""

    def __init__(self, writer: MessageWriter, printed: UnsentText, streams: list[OutputStream]) -> None:
        self._writer = writer
        self._printed = printed
        self._streams = {stream.pipe: stream for stream in streams}
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._awake_until = 0.0
        self._is_flooded = False
        writer.rouse = self.rouse
        printed.rouse = self.rouse
        OurThread(target=self._run, name="watcher", daemon=True).start()

    def rouse(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"\0")

    def let_go(self) -> None:
        """Close its own descriptors, in a fork, which has no watcher thread."""
        for end in (self._bell, self._ring):
            os.close(end)

    def _run(self) -> None:
        poller = select.poll()
        for descriptor in (*self._streams, self._bell, self._writer.from_children.fileno()):
            poller.register(descriptor, select.POLLIN)
        while True:
            self._await_room()
            ready = {descriptor for descriptor, _ in poller.poll(self._timeout())}
            if self._bell in ready:
                os.read(self._bell, 4096)
                self._awake_until = time.monotonic() + LINGER
            if self._writer.from_children.fileno() in ready:
                self._writer.pass_on()
            if ready & self._streams.keys():
                if not self._is_flooded:
                    time.sleep(PIPE_PAUSE)
                self._is_flooded = any(map(_has_much, self._streams))
            for descriptor in ready & self._streams.keys():
                if not self._streams[descriptor].take_from_pipe():
                    poller.unregister(descriptor)
            if self._printed.is_due(TICK):
                self._printed.send()

    def _await_room(self) -> None:
        """Write the queue; nothing is read meanwhile, so code that floods the descriptors waits, too."""
        while self._writer.queue:
            self._writer.write_queue()
            if self._writer.queue:
                await_room(self._writer.socket.fileno())

    def _timeout(self) -> float | None:
        """Return the milliseconds to wait; None to sleep until something is printed or written."""
        if time.monotonic() < self._awake_until:
            return TICK * 1000
        self._printed.wants_bell = True
        return TICK * 1000 if self._printed.pieces else None


def _has_much(pipe: int) -> bool:
    """Return whether a pipe is so full that its writer may soon have to wait."""
    size = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return size[0] >= MUCH_IN_PIPE
