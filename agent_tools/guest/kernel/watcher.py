"""The one thread beside the code: for what others write to the descriptors, and for what could not be sent at once.

It sends printed text that has waited for TICK, so that long-running code is seen at work. While nothing is printed it
sleeps; after text it stays awake for LINGER, because waking a thread costs more than most cells.
"""

import array
import contextlib
import fcntl
import os
import select
import termios
import threading
import time

from ..wire.waiting import await_room
from .outlet import Outlet
from .streams import Printed, Stream

TICK = 0.1  # seconds that printed text waits for more at most
PIPE_PAUSE = 0.005  # seconds that text waits for more in a pipe, where it outlives this process
MUCH_IN_PIPE = 32 * 1024  # bytes after which what comes next does not wait, or it would hold up who writes
LINGER = 2.0  # seconds after printed text during which the next one need not wake the thread


class Watcher:
    """Watches the descriptors of both streams, the forked children and the outlet's queue."""

    def __init__(self, outlet: Outlet, printed: Printed, streams: list[Stream]) -> None:
        self._outlet = outlet
        self._printed = printed
        self._streams = {stream.pipe: stream for stream in streams}
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)
        self._awake_until = 0.0
        self._is_flooded = False
        outlet.rouse = self.rouse
        printed.rouse = self.rouse
        threading.Thread(target=self._run, name="watcher", daemon=True).start()

    def rouse(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"\0")

    def let_go(self) -> None:
        """Close what it watched itself by, in a fork, where its thread is not."""
        for end in (self._bell, self._ring):
            os.close(end)

    def _run(self) -> None:
        poller = select.poll()
        for descriptor in (*self._streams, self._bell, self._outlet.from_children.fileno()):
            poller.register(descriptor, select.POLLIN)
        while True:
            self._await_room()
            ready = {descriptor for descriptor, _ in poller.poll(self._patience())}
            if self._bell in ready:
                os.read(self._bell, 4096)
                self._awake_until = time.monotonic() + LINGER
            if self._outlet.from_children.fileno() in ready:
                self._outlet.pass_on()
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
        """Write the queue; nothing else is read meanwhile, so whoever floods the descriptors waits, too."""
        while self._outlet.queue:
            self._outlet.write_queue()
            if self._outlet.queue:
                await_room(self._outlet.socket.fileno())

    def _patience(self) -> float | None:
        """Return the milliseconds to wait; None to sleep until something is printed or written."""
        if time.monotonic() < self._awake_until:
            return TICK * 1000
        self._printed.wants_bell = True
        return TICK * 1000 if self._printed.pieces else None


def _has_much(pipe: int) -> bool:
    """Return whether there is so much in a pipe that whoever writes to it may soon have to wait."""
    size = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return size[0] >= MUCH_IN_PIPE
