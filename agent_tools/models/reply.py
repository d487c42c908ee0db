"""One reply of a model's server, read in a thread of its own, so that `close` ends a wait at any point.

Theory of operation
    The thread sends the request, reads the answer as an HTTP client has it, and hands the deltas over. After the last
    delta it reads on to the end of the answer, which is the condition for using the connection again; no caller waits
    for that.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from contextvars import copy_context
from functools import partial
from itertools import chain
from typing import Any, Protocol, Union

from agent_tools.errors import ModelError
from agent_tools.models.base import Delta, Json
from agent_tools.models.reply_events import events
from agent_tools.models.reply_limits import END
from agent_tools.models.server_errors import CONTEXT_TOO_LONG, MAX_WORDS, error_of, failure_name, words_of

USAGE_SECONDS = 2.0  # a server's time for what follows the finish reason: usage, and the end of the stream
END_SECONDS = 0.1  # a server's time to end its answer after the last event; then the connection is closed
Waiting = Callable[[], AbstractContextManager[None]]
"""Makes what is around a wait of the thread that reads a reply."""
_made_here = threading.local()
"""The reply that this thread reads."""
Arrived = Union[Delta, BaseException, None]
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


class ReplyReader(Protocol):
    """Converts a server's answer into deltas."""

    @property
    def is_over(self) -> bool:
        """The server has sent the end of its answer."""

    @property
    def is_complete(self) -> bool:
        """Nothing that may come after the end is needed: usage comes late from some servers."""

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one event."""

    def read_whole(self, body: Json) -> Iterator[Delta]:
        """Yield the deltas of an answer that did not come as a stream."""

    def finish(self) -> Iterator[Delta]:
        """Yield the deltas that only the end can settle."""


class Reply(Iterator[Delta]):
    """The deltas of a reply.

    `close`, from any thread, ends iteration at once and closes the connection, or closes it once it exists: the server
    may not have answered yet. Errors are raised where the deltas are read.

    Args:
        open_response: sends the request; returns the response of an HTTP client, unread.
        translated: makes a `ModelError` of what the client raises.
        reader: of this reply only.
        waiting: around each wait for a delta.
        open_again: sends another request after an answer that is only an error, by the words of it; None for none.
        taken: is called once an answer has begun.
    """

    def __init__(
        self,
        open_response: Callable[[], Any],
        translated: Callable[[], AbstractContextManager[None]],
        reader: ReplyReader,
        waiting: Waiting = nullcontext,
        open_again: Callable[[str], Any] = lambda _words: None,
        taken: Callable[[], object] = lambda: None,
    ) -> None:
        self._waiting = waiting
        self._open, self._open_again, self._taken = open_response, open_again, taken
        self._translated = translated
        self._reader = reader
        self._stream: Any = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        receive = partial(copy_context().run, self._receive)  # with the trace that this is part of
        threading.Thread(target=receive, name="model-reply", daemon=True).start()

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
            _shut_down(self._stream)
        if not was_closed:
            self._arrived.put(None)

    @property
    def is_closed(self) -> bool:
        """The reply was closed, or read to its end."""
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
            with self._translated():
                response = self._open()
                while response is not None:
                    response = self._receive_from(response)
        except BaseException as exc:  # noqa: BLE001  (raised again where the deltas are read)
            self._arrived.put(exc)
        finally:
            self._arrived.put(None)

    def _receive_from(self, response: Any) -> Any:
        """Read an answer; return the next one, unread, if this one is an error that says what to ask instead."""
        has_begun = False
        with closing(response):
            if self._is_closed:
                return None
            arriving = response.iter_bytes()
            try:
                for delta in _deltas(arriving, self._reader, partial(_hang_up, response)):
                    if not has_begun:
                        self._taken()
                    has_begun = True
                    self._arrived.put(delta)
            except ModelError as exc:
                following = None if has_begun or not exc.detail else self._open_again(exc.detail)
                if following is None:
                    raise
                return following
            _made_here.reply = None  # `close` leaves the connection alone from now on
            self._arrived.put(None)
            _read_to_the_end(arriving, response)
        return None

    def _hold(self, stream: Any) -> None:
        with self._lock:
            self._stream = stream
            if self._is_closed:
                _shut_down(stream)


def bind_to_reply(request: Any) -> None:
    """Make a request end with its reply, also before the answer begins; `request` is an HTTP client's, not yet sent.

    Raises:
        ModelError: the reply has been closed: clients try again by themselves.
    """
    reply = getattr(_made_here, "reply", None)
    if reply and reply.is_closed:
        raise ModelError("The reply was abandoned.")
    request.extensions["trace"] = _watch


def _watch(event: str, info: dict[str, Any]) -> None:
    """Let replies know the connection that they wait for; only a new one is named (httpx's extension `trace`)."""
    if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
        stream = info["return_value"]
        stream.read, stream.write = partial(_held, stream, stream.read), partial(_held, stream, stream.write)


def _held(stream: Any, move: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if (reply := getattr(_made_here, "reply", None)) is None:
        return move(*args, **kwargs)
    reply._hold(stream)
    try:
        return move(*args, **kwargs)
    finally:
        reply._hold(None)


def _deltas(arriving: Iterator[bytes], reader: ReplyReader, hang_up: Callable[[], None]) -> Iterator[Delta]:
    head = _head(arriving)
    if head.lstrip().startswith(b"{"):  # no event begins so: the server has ignored that a stream was asked for
        yield from _read(reader.read_whole, json.loads((head + b"".join(arriving)).decode()))
    elif head.lstrip().startswith(b"<"):
        raise ModelError(
            "The model's server answered with a web page: is its address that of an API, such as http://host:8000/v1?"
        )
    else:
        has_end, words, said = False, "", None
        for event in _events(chain((head,), arriving), reader, hang_up):
            if _is_end(event):
                has_end = True
            elif (not has_end or b'"usage"' in event) and (said := json.loads(event.decode())) is not None:
                words = words_of(said) if isinstance(said, dict) and "choices" not in said else words
                yield from _read(reader.read, said)
            if has_end and reader.is_complete:
                break
        is_usage = isinstance(said, dict) and bool(said.get("usage")) and not said.get("choices")  # which comes last
        if not has_end and not reader.is_over and not is_usage:
            words = head[:MAX_WORDS].decode(errors="replace").strip() if said is None else words  # no event has come
            raise ModelError("The model's server stopped in the middle of its answer.", is_retryable=True, detail=words)
    yield from reader.finish()


def _is_end(event: bytes) -> bool:
    return event[:20].strip(b' "')[: len(END)].upper() == END


def _events(arriving: Iterator[bytes], reader: ReplyReader, hang_up: Callable[[], None]) -> Iterator[bytes]:
    """Yield a stream's events. Some servers leave the connection open after the last one."""
    is_late = is_over = False
    late: threading.Timer | None = None

    def end_late() -> None:
        nonlocal is_late
        is_late = True
        hang_up()

    try:
        for event in events(arriving):
            yield event
            has_more = b'"delta"' in event  # some servers give a finish reason with each piece
            if not is_over and (_is_end(event) or (reader.is_over and (has_more or not late))):
                is_over = _is_end(event)
                late = _replaced(late, threading.Timer(END_SECONDS if is_over else USAGE_SECONDS, end_late))
    except Exception:
        if not is_late:
            raise
    finally:
        _replaced(late)


def _replaced(timer: threading.Timer | None, following: threading.Timer | None = None) -> threading.Timer | None:
    if timer:
        timer.cancel()
    if following:
        following.daemon = True
        following.start()
    return following


def _head(arriving: Iterator[bytes]) -> bytes:
    """Return the first bytes that are not only white space, with all before them."""
    found: list[bytes] = []
    for data in arriving:
        found.append(data)
        if data.strip():
            break
    return b"".join(found)


def _read(read: Callable[[Json], Iterator[Delta]], said: Any) -> list[Delta]:
    """Read an event, or a whole answer.

    Raises:
        ModelError: it is malformed, or the server's error.
    """
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
    late = _replaced(None, threading.Timer(END_SECONDS, _hang_up, (response,)))
    try:
        for _ in arriving:
            pass
    except Exception:  # noqa: BLE001  (all that counts has been read; the connection is closed)
        return
    finally:
        _replaced(late)


def _hang_up(response: Any) -> None:
    """Shut the connection of an answer down, unless it has ended: the connection may be another one's by now."""
    if not response.is_closed:
        _shut_down(response.extensions.get("network_stream"))


def _shut_down(stream: Any) -> None:
    """Shut a connection down, which also wakes the thread that waits for it; that thread then closes it."""
    with contextlib.suppress(AttributeError, OSError):
        connection = stream.get_extra_info("socket")
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS sockets too: only the plain call is thread-safe
