"""stdout and stderr as messages: in order, in pieces, and with what subprocesses write to the descriptors."""

import codecs
import fcntl
import os
import select
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from ipykernel import iostream

MAX_STREAM_CHARS = 256 * 1024  # one stream message; longer text is sent as several
MAX_UNSENT_CHARS = 1024 * 1024  # printed text the kernel holds before the code has to wait for the host
PIECE_CHARS = 256  # what a flushed piece counts beside its text: it is several objects, however short it is
FD_DRAIN_SECONDS = 0.5  # how long the end of a cell waits for what subprocesses wrote to fd 1 and 2


class Stream(iostream.OutStream):
    """stdout or stderr as messages, file descriptors included, with a way to know that the descriptors are drained.

    Writing and flushing cost less than in the stock class: the buffer's key is made once a cell, and a flush does not
    wait for the sending thread. It takes the buffer away and puts its sending in the thread's queue, so that a display
    stays between the text printed before it and the text printed after it, whenever the thread comes round to them.
    Only when much is unsent the code waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pipe_lock = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._keyed_parent: Any = None
        self._key: frozenset[Any] = frozenset()
        self._unsent = 0
        self._taken: deque[tuple[Any, str]] = deque()
        self._taken_count = self._sent_count = 0
        super().__init__(*args, **kwargs)

    def write(self, string: str) -> int | None:
        """Buffer text for the cell that is running."""
        if self.pub_thread is None or os.getpid() != self._master_pid or not isinstance(string, str):
            return super().write(string)  # type: ignore[no-any-return]
        parent = self.parent_header
        with self._buffer_lock:
            if parent is not self._keyed_parent:
                self._keyed_parent, self._key = parent, frozenset(parent.items())
            self._buffers[self._key].write(string)
            self._unsent += len(string)
        if self._unsent > MAX_UNSENT_CHARS:
            self._flush_and_wait()
        else:
            self._schedule_flush()
        return len(string)

    def flush(self) -> None:
        """Have what is buffered sent: before anything that is sent later, and without what is written later."""
        if not self._buffers or self.pub_thread is None:
            return
        with self._buffer_lock:
            if os.getpid() != self._master_pid:
                self._taken.clear()  # a forked child does not say again what its parent is about to say
            taken = list(self._flush_buffers())
            self._taken.extend(taken)
            self._taken_count += len(taken)
            self._unsent += PIECE_CHARS * len(taken)
            sending = _Sending(self, self._taken_count)
        self.pub_thread.schedule(sending)

    def _flush(self) -> None:
        """Called in the sending thread now and then."""
        self._flush_pending = self._subprocess_flush_pending = False
        self.flush()

    def _flush_and_wait(self) -> None:
        self.flush()
        sent = threading.Event()
        self.pub_thread.schedule(sent.set)
        sent.wait(self.flush_timeout)

    def send(self, count: int) -> None:
        """Send what was taken, up to the count of all pieces so far, and what is next in the queue. In its thread."""
        if self._sent_count >= count:
            return
        count, pieces = max([count, *(event.count for event in self._next_of_ours())]), []
        while self._taken and self._sent_count < count:
            pieces.append(self._taken.popleft())
            self._sent_count += 1
        for parent, group in groupby(pieces, key=itemgetter(0)):
            text = "".join(map(itemgetter(1), group))
            for start in range(0, len(text), MAX_STREAM_CHARS):
                self._send_now(parent, text[start : start + MAX_STREAM_CHARS])
        with self._buffer_lock:
            self._unsent -= sum(PIECE_CHARS + len(text) for _, text in pieces)

    def _next_of_ours(self) -> Iterator["_Sending"]:
        """What the sending thread would do next without anything else between: it may be one message."""
        events = self.pub_thread._events
        for index in range(len(events)):  # others add to it meanwhile, so no iterator holds
            if not isinstance(events[index], _Sending) or events[index].stream is not self:
                return
            yield events[index]

    def _send_now(self, parent: Any, text: str) -> None:
        self.session.pid = os.getpid()  # a forked child may send
        message = self.session.msg("stream", {"name": self.name, "text": text}, parent=parent)
        self.pub_thread._really_send(self.session.serialize(message, ident=self.topic))

    def _watch_pipe_fd(self) -> None:
        fd = self._fid
        while self._should_watch:
            select.select([fd], [], [])
            with self._pipe_lock:
                data = os.read(fd, 65536)
                self.write(self._decoder.decode(data))

    def is_drained(self) -> bool:
        """Whether everything written to the descriptor so far is in the buffer."""
        if self._fid is None:
            return True
        with self._pipe_lock:
            waiting = fcntl.ioctl(self._fid, termios.FIONREAD, b"\0\0\0\0")
        return bool(struct.unpack("i", waiting)[0] == 0)


class _Sending:
    """A place in the sending thread's queue: here goes what had been taken from a stream by then."""

    def __init__(self, stream: Stream, count: int) -> None:
        self.stream = stream
        self.count = count

    def __call__(self) -> None:
        self.stream.send(self.count)


def drain_streams() -> None:
    """Wait until what was written to fd 1 and 2 so far is in the buffers, or for a moment."""
    deadline = time.monotonic() + FD_DRAIN_SECONDS
    for stream in (sys.stdout, sys.stderr):
        while isinstance(stream, Stream) and not stream.is_drained() and time.monotonic() < deadline:
            time.sleep(0.001)
