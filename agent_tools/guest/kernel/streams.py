"""stdout and stderr as messages: in the order of printing, and with what subprocesses write to the descriptors.

Theory of operation
    Both streams share one list of pieces (`UnsentText`), so text keeps its order across them. A piece belongs to one
    request, by its parent header. The pieces are sent before anything else that is sent (session.py), when there is
    much of them, when the watcher finds that they have waited long enough, or when code flushes a stream: then they
    arrive whatever becomes of the process. So nothing can overtake printed text.

    The descriptors 1 and 2 are pipes whose reading ends the kernel has, and PID 1, which reads what is left in them
    when the kernel has ended. What subprocesses and C libraries write is taken in by the watcher, at each flush
    (IPython flushes before it shows anything), and at the end of the cell. Code that prints after a pause may have
    waited for a process, whose text comes before its own: it is taken in first.

    Between the pipe and the host's socket, text is in this process alone, so each piece is sent as soon as it is read.

    The handler of a signal may print and flush while the code does, and so holds the lock already. There is one lock
    for the list, the pipes and the message writer: of two, the watcher could hold one and wait for the other.

    A forked child cannot use the list or the lock of its parent: it prints to the descriptors, like a subprocess.

    Code finds the attributes and methods of a script's stdout. Bytes for `buffer` are decoded into the same list. What
    code puts in the place of a stream stays there only as long as the cell runs, unless it passes on to the stream.
"""

import codecs
import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

from .interrupts import shield

MAX_STREAM_CHARS = 256 * 1024  # of one message; longer text is sent as several
PIECE_CHARS = 64  # what a piece counts beside its text: it is an object, however short it is
PIPE_BYTES = 64 * 1024  # read from a descriptor at a time
PAUSE = 20e-6  # seconds without a print in which a process may have written; one that begins takes longer
DRAINED_BYTES = 4 * 1024 * 1024  # read from a descriptor at the end of a cell, at most
MAX_HELD = 200  # objects that are looked at for a stream which a substitute passes on to

Header = dict[str, Any]
Publish = Callable[[str, Header, str, bool], None]
"""Sends text: the name of the stream, the header of the request, the text, and whether more follows at once."""


class Piece:
    """Text of one stream that belongs to one request."""

    __slots__ = ("name", "parent", "texts")

    def __init__(self, name: str, parent: Header) -> None:
        self.name, self.parent = name, parent
        self.texts: list[str] = []


class UnsentText:
    """The text of both streams that was printed and not sent."""

    def __init__(self, lock: threading.RLock, publish: Publish) -> None:
        self.lock = lock
        self.pieces: list[Piece] = []
        self.wants_bell = False
        """True while the watcher sleeps until it is roused."""
        self.rouse: Callable[[], None] = lambda: None
        self.await_room: Callable[[], None] = lambda: None
        self.read_children: Callable[[], None] = lambda: None
        self.sends_flushed: Callable[[], bool] = lambda: False
        """Whether flushed text is sent at once: in cells and between requests. The reply takes other text along."""
        self.is_outermost: Callable[[], bool] = lambda: True
        """Whether the cell that ends runs within no other one."""
        self.streams: list[OutputStream] = []
        self._publish = publish
        self._chars = 0
        self._since = 0.0
        self._written_at = 0.0

    def add(self, name: str, parent: Header, text: str) -> None:
        """Add text, and send it if there is much."""
        self.append(name, parent, text)
        if self._chars > MAX_STREAM_CHARS:
            self.send()
        elif self.wants_bell:
            self.wants_bell = False
            self.rouse()

    def append(self, name: str, parent: Header, text: str) -> None:
        """Add text that the caller sends at once."""
        with self.lock:
            last = self.pieces[-1] if self.pieces else None
            if last is None:
                self._since = time.monotonic()
            if last is None or last.name != name or last.parent is not parent:
                last = Piece(name, parent)
                self.pieces.append(last)
            last.texts.append(text)
            self._chars += len(text) + PIECE_CHARS

    def take_from_pipes(self) -> None:
        """Read output of processes from the pipes if the code has not printed for a while."""
        now = time.monotonic()
        if now - self._written_at > PAUSE:
            for stream in self.streams:
                stream.take_from_pipe()
        self._written_at = now

    def set_parent(self, parent: Header) -> None:
        """Let text belong to a request, also where code has put something else in place of a stream."""
        for stream in self.streams:
            stream.set_parent(parent)

    def end_cell(self) -> None:
        """Read the output of processes and forked children so far; restore a stream whose substitute mutes the code.

        A substitute that passes on to a stream stays: a logger that also writes a file, a wrapper for colours.
        """
        self.read_children()
        for stream in self.streams:
            current: Any = getattr(sys, stream.channel, None)  # None after `del`
            is_left = current is not stream and self.is_outermost()
            if is_left and (reason := _muting(current, self.streams)):
                setattr(sys, stream.channel, stream)
                print(f"sys.{stream.channel} {reason}; it is the cell's output again.", file=self.streams[-1])
            stream.take_from_pipe(DRAINED_BYTES)

    def send(self, *, can_wait: bool = False) -> None:
        """Send all text without waiting, or, if it can wait, with the next message."""
        with shield, self.lock:
            pieces, self.pieces, self._chars = self.pieces, [], 0
            for piece in pieces:
                text = "".join(piece.texts)
                for start in range(0, len(text), MAX_STREAM_CHARS):
                    self._publish(piece.name, piece.parent, text[start : start + MAX_STREAM_CHARS], can_wait)

    def is_due(self, seconds: float) -> bool:
        """Return whether there is text that has waited for so long."""
        return bool(self.pieces) and time.monotonic() - self._since >= seconds

    def become_fork(self) -> None:
        """In a forked child: leave the text to the parent, who sends it."""
        self.lock = threading.RLock()
        self.pieces = []

    def renew(self, lock: threading.RLock) -> None:
        """Continue in a fork that becomes the kernel."""
        self.lock, self.pieces, self.wants_bell = lock, [], False


def _muting(substitute: Any, streams: "list[OutputStream]") -> str:
    """Return why text written to a stream's substitute would not be shown; '' if it would be."""
    try:
        substitute.flush()
        ends = {id(each) for stream in streams for each in (stream, stream.buffer)}
        return "" if _leads_to(substitute, ends) else f"was left as a {type(substitute).__name__}"
    except Exception as exc:  # noqa: BLE001  (of an object of the code's)
        return f"could not be flushed ({type(exc).__name__}: {exc})"


def _leads_to(substitute: Any, ends: set[int]) -> bool:
    """Return whether an object is one of these, or holds one, directly or indirectly."""
    objects = [substitute]
    for each in objects:  # which grows meanwhile
        if id(each) in ends:
            return True
        if len(objects) < MAX_HELD and not isinstance(each, ModuleType):
            objects += [getattr(each, "buffer", None), getattr(each, "__self__", None), *_held_by(each)]
    return False


def _held_by(found: Any) -> Iterator[Any]:
    """Yield the items and attributes of an object, and what its own `write` names."""
    if found is None:
        return
    if isinstance(found, (list, tuple)):
        yield from found
        return
    yield from getattr(found, "__dict__", {}).values()
    write = getattr(type(found), "write", None)
    if isinstance(write, FunctionType):
        names = write.__code__.co_names
        yield from (write.__globals__[name] for name in names if name in write.__globals__)
        yield from (cell.cell_contents for cell in write.__closure__ or ())
        yield from (getattr(sys, name, None) for name in names)


class Bytes(io.BufferedIOBase):
    """The `buffer` of a stream: bytes that are written to it arrive as the stream's text, in order."""

    mode = "wb"

    def __init__(self, stream: "OutputStream") -> None:
        self.raw = self
        self.name = stream.name
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: Any) -> int:
        """Take in bytes, of UTF-8; part of a character waits for the rest."""
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'")
        taken = bytes(data)
        self._stream.write(self._decoder.decode(taken))
        return len(taken)

    def flush(self) -> None:
        """Do as the stream does."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def detach(self) -> Any:
        """Return this object, which is its own raw stream."""
        return self

    def close(self) -> None:
        """Stay open: a wrapper around it that is no longer needed closes it."""


class OutputStream(io.TextIOBase):
    """stdout or stderr. In a forked child it writes to the descriptor, which the parent reads."""

    encoding = "utf-8"
    errors = "strict"
    line_buffering = False
    write_through = True
    mode = "w"

    def __init__(self, channel: str, descriptor: int, pipe: Sequence[int], printed: UnsentText) -> None:
        self.channel = channel
        """`stdout` or `stderr`: the name of the messages' stream, and of sys's attribute."""
        self.name = f"<{channel}>"
        self.buffer = Bytes(self)
        self.pipe = _capture(descriptor, *pipe)
        """The reading end of the pipe that now is the descriptor."""
        self._descriptor = descriptor
        self._printed = printed
        printed.streams.append(self)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_fork = False
        self._parent: ContextVar[Header] = ContextVar("parent_header")
        self._last_parent: Header = {}
        os.register_at_fork(after_in_child=self._become_fork)

    def reconfigure(
        self,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        line_buffering: bool | None = None,
        write_through: bool | None = None,
    ) -> None:
        """Do nothing: text arrives as it is, with any encoding or buffering that a script asks for."""

    def detach(self) -> Any:
        """Return the buffer, which a script wraps anew; the stream goes on."""
        return self.buffer

    def write(self, text: str) -> int:
        """Add text for the running cell."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        if self._is_fork:
            _write_all(self._descriptor, text)
        elif text:
            self._printed.take_from_pipes()
            self._printed.add(self.channel, self.parent_header, text)
            self._printed.await_room()
        return len(text)

    def flush(self) -> None:
        """Read output of subprocesses, and send all text, so that it outlives this process."""
        self.take_from_pipe()
        if self._printed.sends_flushed() and not self._is_fork:
            self._printed.send()
            self._printed.await_room()

    def fileno(self) -> int:
        """Return the descriptor, for subprocesses; what is written to it belongs to the cell, too."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def parent_header(self) -> Header:
        """The header of the request that text of this task or thread belongs to."""
        return self._parent.get(self._last_parent)

    def set_parent(self, parent: Header) -> None:
        """Let text belong to a request."""
        self._last_parent = parent.get("header", parent)
        self._parent.set(self._last_parent)

    def take_from_pipe(self, most: int = PIPE_BYTES) -> bool:
        """Read at most `most` bytes that subprocesses wrote to the descriptor; return False once no process can write.

        They are sent at once, so that they outlive this process as bytes in the pipe would.
        """
        if self._is_fork:  # it is the parent's
            return True
        is_open = True
        with shield, self._printed.lock, contextlib.suppress(BlockingIOError):
            while most > 0 and is_open:
                data = os.read(self.pipe, PIPE_BYTES)
                is_open = bool(data)  # or code has closed the descriptor
                most -= len(data)
                if text := self._decoder.decode(data):
                    self._printed.append(self.channel, self._last_parent, text)
                    self._printed.send()
        return is_open

    def renew(self, reader: int, writer: int) -> None:
        """Use another pipe, in a fork that becomes the kernel."""
        os.close(self.pipe)
        self.pipe, self._is_fork = _capture(self._descriptor, reader, writer), False

    def _become_fork(self) -> None:
        self._is_fork = True


def _capture(descriptor: int, reader: int, writer: int) -> int:
    """Make a descriptor the writing end of a pipe; return the reading end, which does not block."""
    os.dup2(writer, descriptor)
    os.close(writer)
    return reader


def _write_all(descriptor: int, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
