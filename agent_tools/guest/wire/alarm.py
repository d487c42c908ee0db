"""The alarm: a page of memory by which the host tells PID 1 when a run's time is up, without waking it.

PID 1 looks at it whenever it wakes, at least once in LOOK_EVERY seconds. An order would wake it twice in every run,
at the very moment when the kernel and the host have work to do. A run that is over sooner than PID 1 may look is armed
by an order all the same (words.py), and so is every run where host and guest share no memory.

    page   u64 number of the change, f64 when to interrupt, f64 when to kill, u64 the number again

The times are seconds of CLOCK_MONOTONIC, which containers share with their host; 0.0 stands for never. The two numbers
differ while the page is being written. Between the two times lies the kernel's grace: it is killed when it has used as
much processor time after the interrupt, or after MAX_GRACES times as long. Standard library only.
"""

import contextlib
import os
import struct
import time

LOOK_EVERY = 1.0  # seconds between two looks of PID 1
SOON = 2 * LOOK_EVERY  # seconds: what is due sooner is told by an order
MAX_GRACES = 2  # times its grace that a kernel may take to obey an interrupt if it gets no processor time
TRIES = 100  # of reading a page that is being written, which takes microseconds
_PAGE = struct.Struct("=QddQ")

Times = tuple[float, float]
"""The times to interrupt and to kill, monotonic seconds."""


class AlarmWriter:
    """The host's side. `reader` is a descriptor for the guest, which cannot write."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("alarm")
        self.number = 0
        """The number of the latest change."""
        self._write(0.0, 0.0)
        self.reader = os.open(f"/proc/self/fd/{self._memory}", os.O_RDONLY)

    def set(self, interrupt: float, kill: float) -> None:
        """Have the kernel interrupted in so many seconds, and killed `kill` seconds after that."""
        at = time.monotonic() + interrupt
        self._write(at, at + kill)

    def clear(self) -> None:
        """Forget what was set."""
        self._write(0.0, 0.0)

    def close(self) -> None:
        """Let go of the page; the guest keeps what it has."""
        for descriptor in (self._memory, self.reader):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._memory = self.reader = -1

    def _write(self, interrupt_at: float, kill_at: float) -> None:
        self.number += 1
        with contextlib.suppress(OSError):  # closed: nothing is left to be stopped
            os.pwrite(self._memory, _PAGE.pack(self.number, interrupt_at, kill_at, self.number), 0)


class AlarmReader:
    """PID 1's side, on a copy of the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._memory = os.dup(descriptor)
        self.number = 0
        """The number of the change that was seen last."""

    def changed(self) -> "Times | None":
        """Return the times, 0.0 for never, if the page was written since the last look; None if not."""
        for _ in range(TRIES):
            data = os.pread(self._memory, _PAGE.size, 0)
            if len(data) < _PAGE.size:
                return None
            number, interrupt_at, kill_at, again = _PAGE.unpack(data)
            if number == self.number:
                return None
            if number == again:
                self.number = number
                return interrupt_at, kill_at
        return None

    def close(self) -> None:
        """Let go of the page."""
        os.close(self._memory)
