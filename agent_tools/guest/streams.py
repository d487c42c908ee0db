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
from typing import Any

from ipykernel import iostream

MAX_STREAM_CHARS = 256 * 1024  # one stream message; longer text is sent as several
MAX_BUFFERED_CHARS = 1024 * 1024  # printed text the kernel holds before the code has to wait for the host
FD_DRAIN_SECONDS = 0.5  # how long the end of a cell waits for what subprocesses wrote to fd 1 and 2


class Stream(iostream.OutStream):
    """stdout or stderr as messages, file descriptors included, with a way to know that the descriptors are drained.

    Writing and flushing cost less than in the stock class: the buffer's key is made once a cell, and a flush does not
    wait for the sending thread, which sends in order, until much is buffered; then it does, and the code waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pipe_lock = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._keyed_parent: Any = None
        self._key: frozenset[Any] = frozenset()
        self._buffered = 0
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
            self._buffered += len(string)
        if self._buffered > MAX_BUFFERED_CHARS:
            super().flush()
        else:
            self._schedule_flush()
        return len(string)

    def flush(self) -> None:
        """Have what is buffered sent, before anything that is sent later."""
        if self._buffers and self.pub_thread is not None:
            self.pub_thread.schedule(self._flush)

    def _flush(self) -> None:
        """Send what is buffered, from the sending thread and at once: nothing sent later can overtake it."""
        self._flush_pending = self._subprocess_flush_pending = False
        for parent, text in self._flush_buffers():
            for start in range(0, len(text), MAX_STREAM_CHARS):
                self.session.pid = os.getpid()  # a forked child may send
                content = {"name": self.name, "text": text[start : start + MAX_STREAM_CHARS]}
                message = self.session.msg("stream", content, parent=parent)
                self.pub_thread._really_send(self.session.serialize(message, ident=self.topic))

    def _rotate_buffers(self) -> Any:
        self._buffered = 0
        return super()._rotate_buffers()

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


def drain_streams() -> None:
    """Wait until what was written to fd 1 and 2 so far is in the buffers, or for a moment."""
    deadline = time.monotonic() + FD_DRAIN_SECONDS
    for stream in (sys.stdout, sys.stderr):
        while isinstance(stream, Stream) and not stream.is_drained() and time.monotonic() < deadline:
            time.sleep(0.001)
