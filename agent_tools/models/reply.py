"""One reply of a model's server, read in a thread of its own, so that `close` ends a wait at any point.

Theory of operation
    The thread sends the request, reads the answer as an HTTP client has it, and hands the deltas over. After the last
    delta it reads on to the end of the answer, which is the condition for using the connection again; nobody waits for
    that.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import chain
from typing import Any, Protocol, Union

from agent_tools.errors import ModelError
from agent_tools.models.base import Delta, Json
from agent_tools.models.bounds import END
from agent_tools.models.event_stream import events
from agent_tools.models.server_errors import CONTEXT_TOO_LONG, error_of, failure_name, words_of

USAGE_SECONDS = 2.0  # a server's time for what follows the finish reason: usage, and the end of the stream
END_SECONDS = 0.1  # a server's time to end its answer after the last event; then it is hung up on
Waiting = Callable[[], AbstractContextManager[None]]
"""Makes what is around a wait of the thread that reads a reply."""
_made_here = threading.local()
"""The reply that this thread reads."""
Arrived = Union[Delta, BaseException, None]
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


class Reader(Protocol):
    """Reads what a server says into deltas."""

    @property
    def is_over(self) -> bool:
        """The server has told how its answer ends."""

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one event."""

    def read_whole(self, body: Json) -> Iterator[Delta]:
        """Yield the deltas of an answer that did not come as a stream."""

    def finish(self) -> Iterator[Delta]:
        """Yield the deltas that only the end can settle."""


class Reply(Iterator[Delta]):
    """The deltas of a reply.

    `close`, from any thread, ends iteration at once and hangs up. Before the server's first byte there is no connection
    to hang up on yet; then it is closed as soon as there is. Errors are raised where the deltas are read.

    Args:
        open_response: sends the request; returns the response of an HTTP client, unread.
        translated: makes a `ModelError` of what the client raises.
        reader: of this reply only.
        waiting: around each wait for a delta.
    """

    def __init__(
        self,
        open_response: Callable[[], Any],
        translated: Callable[[], AbstractContextManager[None]],
        reader: Reader,
        waiting: Waiting = nullcontext,
    ) -> None:
        self._waiting = waiting
        self._open = open_response
        self._translated = translated
        self._reader = reader
        self._response: Any = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="model-reply", daemon=True).start()

    def __next__(self) -> Delta:
        item = None if self._is_closed else self._next()
        if item is None or self._is_closed:
            self.close()
            raise StopIteration
        if isinstance(item, BaseException):
            self.close()
            raise item
        return item

    def close(self) -> None:
        """Abandon the reply. Closing again does nothing."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            response = self._response
        if not was_closed:
            self._arrived.put(None)
            if response is not None:
                _hang_up(response)

    @property
    def is_closed(self) -> bool:
        """It was abandoned, or has been read."""
        return self._is_closed

    def _next(self) -> Arrived:
        try:
            return self._arrived.get_nowait()
        except queue.Empty:
            with self._waiting():
                return self._arrived.get()

    def _receive(self) -> None:
        _made_here.reply = self
        try:
            with self._translated(), closing(self._open()) as response:
                self._hold(response)
                if self._is_closed:
                    return
                arriving = response.iter_bytes()
                for delta in _deltas(arriving, self._reader, partial(_hang_up, response)):
                    self._arrived.put(delta)
                self._hold(None)
                self._arrived.put(None)
                _read_to_the_end(arriving, response)
        except BaseException as exc:  # noqa: BLE001  (raised again where the deltas are read)
            self._arrived.put(exc)
        finally:
            self._hold(None)
            self._arrived.put(None)

    def _hold(self, response: Any) -> None:
        with self._lock:
            self._response = response


def refuse_abandoned(_request: Any) -> None:
    """Raise instead of sending for a reply that was closed meanwhile: clients try again by themselves."""
    reply = getattr(_made_here, "reply", None)
    if reply and reply.is_closed:
        raise ModelError("The reply was abandoned.")


def _deltas(arriving: Iterator[bytes], reader: Reader, hang_up: Callable[[], None]) -> Iterator[Delta]:
    head = _head(arriving)
    if head.lstrip().startswith(b"{"):  # no event begins so: the server has ignored that a stream was asked for
        yield from _read(reader.read_whole, head + b"".join(arriving))
    else:
        has_end = False
        for event in _events(chain((head,), arriving), reader, hang_up):
            if has_end := event.startswith(END):
                break
            yield from _read(reader.read, event)
        if not has_end and not reader.is_over:
            raise ModelError("The model's server stopped in the middle of its answer.", is_retryable=True)
    yield from reader.finish()


def _events(arriving: Iterator[bytes], reader: Reader, hang_up: Callable[[], None]) -> Iterator[bytes]:
    """Yield a stream's events. Some servers leave the connection open after the last one."""
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        hang_up()

    late = threading.Timer(USAGE_SECONDS, give_up)
    late.daemon = True
    try:
        for event in events(arriving):
            yield event
            if reader.is_over and late.ident is None:
                late.start()
    except Exception:
        if not is_late.is_set():
            raise
    finally:
        late.cancel()


def _head(arriving: Iterator[bytes]) -> bytes:
    """Return the first bytes that are not only white space, with all before them."""
    found: list[bytes] = []
    for data in arriving:
        found.append(data)
        if data.strip():
            break
    return b"".join(found)


def _read(read: Callable[[Json], Iterator[Delta]], data: bytes) -> list[Delta]:
    """Read an event, or a whole answer.

    Raises:
        ModelError: it is malformed, or the server's error.
        ValueError: it is no JSON.
    """
    said = json.loads(data.decode())
    if error := error_of(said):
        names = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
        message = "The model's server ended its answer with an error."
        words = words_of(error)
        code = failure_name(words, *names)
        raise ModelError(message, 400 if code == CONTEXT_TOO_LONG else None, code, detail=words)
    try:
        return list(read(said))
    except _MALFORMED as exc:
        raise ModelError("The model's server sent something that is not a reply.") from exc


def _read_to_the_end(arriving: Iterator[bytes], response: Any) -> None:
    """Read what is left, for `END_SECONDS` at most."""
    late = threading.Timer(END_SECONDS, _hang_up, (response,))
    late.daemon = True
    try:
        late.start()
        for _ in arriving:
            pass
    except Exception:  # noqa: BLE001  (all that counts has been read; the connection is closed)
        return
    finally:
        late.cancel()


def _hang_up(response: Any) -> None:
    """Shut the connection down, which also wakes the thread that reads from it; that thread then closes it.

    The connection of an answer that has ended may be another one's by now.
    """
    if response.is_closed:
        return
    with contextlib.suppress(KeyError, AttributeError, OSError):
        connection = response.extensions["network_stream"].get_extra_info("socket")
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS sockets too: only the plain call is thread-safe
