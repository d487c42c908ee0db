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
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from contextvars import copy_context
from functools import partial
from itertools import chain
from typing import Any, Protocol, Union
from urllib.parse import urljoin, urlsplit

from agent_tools.errors import ModelError
from agent_tools.models.base import END, Delta, Json
from agent_tools.text import neutralise

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

    `close`, from any thread, ends iteration at once and closes the connection, or closes it once it exists. Errors are
    raised where the deltas are read.

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
        self._response: Any = None
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
            response = self._response
        if not was_closed:
            self._arrived.put(None)
            if response is not None:
                _hang_up(response)

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
            self._hold(None)
            self._arrived.put(None)

    def _receive_from(self, response: Any) -> Any:
        """Read an answer; return the next one, unread, if this one is an error that says what to ask instead."""
        has_begun = False
        with closing(response):
            self._hold(response)
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
            self._hold(None)
            self._arrived.put(None)
            _read_to_the_end(arriving, response)
        return None

    def _hold(self, response: Any) -> None:
        with self._lock:
            self._response = response


def refuse_abandoned(_request: Any) -> None:
    """Raise instead of sending if the reply has been closed: clients try again by themselves."""
    reply = getattr(_made_here, "reply", None)
    if reply and reply.is_closed:
        raise ModelError("The reply was abandoned.")


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
            words = head[:_MAX_WORDS].decode(errors="replace").strip() if said is None else words  # no event has come
            raise ModelError("The model's server stopped in the middle of its answer.", is_retryable=True, detail=words)
    yield from reader.finish()


def _is_end(event: bytes) -> bool:
    return event[:20].strip(b' "')[: len(END)].upper() == END


def _events(arriving: Iterator[bytes], reader: ReplyReader, hang_up: Callable[[], None]) -> Iterator[bytes]:
    """Yield a stream's events. Some servers leave the connection open after the last one."""
    is_late = is_over = False
    late: threading.Timer | None = None

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        hang_up()

    try:
        for event in events(arriving):
            yield event
            has_more = b'"delta"' in event  # some servers give a finish reason with each piece
            if not is_over and (_is_end(event) or (reader.is_over and (has_more or not late))):
                is_over = _is_end(event)
                late = _replaced(late, threading.Timer(END_SECONDS if is_over else USAGE_SECONDS, give_up))
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
    """Shut the connection down, which also wakes the thread that reads from it; that thread then closes it.

    The connection of an answer that has ended may be another one's by now.
    """
    if response.is_closed:
        return
    with contextlib.suppress(KeyError, AttributeError, OSError):
        connection = response.extensions["network_stream"].get_extra_info("socket")
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS sockets too: only the plain call is thread-safe


# The events of a streamed answer, from its bytes.
#
# The format is https://html.spec.whatwg.org/multipage/server-sent-events.html. Data counts here, and the name `error`:
# other names repeat what their data says, and no client reconnects. Beyond the standard, the last event may lack its
# empty line.


_LINE_END = re.compile(rb"\r\n?|\n")


class EventReader:
    """Reads events as their bytes come. It takes time in proportion to them, however they are cut."""

    def __init__(self) -> None:
        self._line = bytearray()  # not over yet
        self._searched = 0  # bytes of it that hold no end of a line
        self._data: list[bytes] = []  # of an event that is not over yet
        self._is_error = False  # by its name
        self._is_first = True

    def feed(self, arrived: bytes) -> list[bytes]:
        """Return the data of the events that are over with these bytes; events without data are left out."""
        self._line += arrived
        events: list[bytes] = []
        begin = 0
        while found := _LINE_END.search(self._line, max(begin, self._searched)):
            if found.end() == len(self._line) and found.group() == b"\r":
                break  # it may be half an end
            self._read(bytes(self._line[begin : found.start()]), events)
            begin = found.end()
        del self._line[:begin]
        self._searched = max(0, len(self._line) - 1)
        return events

    def finish(self) -> list[bytes]:
        """Return the data of the event that the end of the stream cut off, if there is one."""
        return [*self.feed(b"\n"), *self.feed(b"\n")]

    def _read(self, line: bytes, events: list[bytes]) -> None:
        if self._is_first:
            self._is_first, line = False, line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        name, _, value = line.partition(b":")
        while name == b"data" and value.lstrip().startswith(b"data:"):  # proxies write it twice
            value = value.lstrip()[len(b"data:") :]
        value = value.removeprefix(b" ")
        if line.startswith(b"{"):  # some servers write errors so
            name, value = b"data", line
        is_comment = name == b"data" and value.startswith(b":")
        if name in (b"data", b"error") and not is_comment:  # llama.cpp has errors under a name of their own
            is_next = value.startswith((b"{", b"[DONE")) and len(self._data) == 1
            if is_next and isinstance(json_or_text(self._data[0]), dict):
                self._end(events)  # without an empty line between them
            self._data.append(value)
            self._is_error = self._is_error or name == b"error"
        elif name == b"event":
            self._is_error = value.strip().lower().endswith((b"error", b"exception"))
        elif not line:
            self._end(events)

    def _end(self, events: list[bytes]) -> None:
        data = b"\n".join(self._data)
        events += filter(None, [_error(data) if self._is_error and data else data])
        self._data.clear()
        self._is_error = False


def json_or_text(data: bytes) -> object:
    """Return JSON read; anything else as text."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return data.decode(errors="replace").strip()


def _error(data: bytes) -> bytes:
    """Return the data of an event that is an error by its name as an error: it may be anything."""
    said = json_or_text(data)
    return json.dumps(said if error_of(said) else {"error": said}).encode()


def events(arriving: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each event of a stream."""
    stream = EventReader()
    for data in arriving:
        yield from stream.feed(data)
    yield from stream.finish()


# The errors that models' servers send, in the shapes that servers use: as the body of an answer, or in its stream.


_SHORT_NAME = re.compile(r"[\w.-]{1,64}")
_MAX_ERRORS = 10  # of one answer that are reported
_MAX_ADDRESS = 200  # characters of an address that is shown
_MAX_DEPTH = 4  # of the words in the body of an error
_OF_A_REPLY = ("choices", "usage", "id", "type")  # a chunk or an event has one of these; some chunks have a `message`
_OF_AN_ERROR = ("message", "detail", "msg", "status_msg")
_EXCEPTION = re.compile(r"[a-z]Exception$")
_WORDS = (
    *("error_description", "error_message", "error_msg", "error", "errors", *_OF_AN_ERROR, "details", "reason"),
    *("exception", "fault", "faultstring", "header", "title"),
)
"""Names of fields, in lower case, that hold a server's words, or something that holds them; the best first."""

CONTEXT_TOO_LONG = "context_length_exceeded"
"""OpenAI's name of the failure that the conversation does not fit into the model's context."""

_NAME_OF_TOO_LONG = re.compile(r"(?=.*(?:context|prompt)).*(?:exceed|too_long).*", re.IGNORECASE)
_CONTEXT = r"context (?:length|window|size|limit)|(?:prompt|model|input) length|input token count|model token limit"
_EXCESS = r"exceed|maximum|too (?:long|large)|(?:long|great|larg)er than|is only"
_RATE = r"rate limit|quota|per (?:second|minute|hour|day)"
_SAYS_TOO_LONG = re.compile(
    rf"(?!.*(?:{_RATE}))(?:(?=.*(?:prompt|input) is too long)|(?=.*(?:{_CONTEXT}))(?=.*(?:{_EXCESS})))",
    re.IGNORECASE | re.DOTALL,
)
_MAX_WORDS = 1_000  # characters of a server's words that are searched


def failure_name(words: str, *names: object) -> str | None:
    """Return the short name of a failure; servers have several names and sentences for a context that is too long."""
    is_too_long = any(_NAME_OF_TOO_LONG.fullmatch(name[:100]) for name in names if isinstance(name, str))
    return CONTEXT_TOO_LONG if is_too_long or _SAYS_TOO_LONG.match(words[:_MAX_WORDS]) else short_name(*names)


def short_name(*names: object) -> str | None:
    """Return the first of a failure's names that is short; a number is the status again."""
    return next(
        (name for name in names if isinstance(name, str) and _SHORT_NAME.fullmatch(name) and not name.isdigit()), None
    )


def error_of(body: object) -> object:
    """Return the error that an answer, or an event in its stream, consists of; None if it is no error.

    Besides `{"error": ...}`, also in a choice, there are vLLM's `{"object": "error", "message": ...}`, FastAPI's
    `{"detail": ...}`, and the `base_resp` of a failure beside a reply without choices.
    """
    body = body[0] if isinstance(body, list) and len(body) == 1 else body
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    choices = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    for holder in (body, *choices, *(each.get("delta") for each in choices)):
        if isinstance(holder, dict) and (inner := holder.get("error") or holder.get("errors")):
            inner = holder if inner is True else inner
            return inner["error"] if isinstance(inner, dict) and inner.get("error") not in (None, True) else inner
    if isinstance(base := body.get("base_resp"), dict) and base.get("status_code"):
        return base
    if not choices and (named := next((each for name, each in body.items() if _EXCEPTION.search(name) and each), None)):
        return named
    is_error = body.get("object") == "error" or (
        not any(name in body for name in _OF_A_REPLY) and any(body.get(name) for name in _OF_AN_ERROR)
    )
    return body if is_error else None


def redirect_target(response: Any) -> str:
    """Return the address that an HTTP client's response redirects to, without user and query; '' if it does not."""
    if not response.has_redirect_location:
        return ""
    try:
        target = urlsplit(urljoin(str(response.url), response.headers["location"]))
    except ValueError:
        return "an address that is malformed"
    address = f"{target.scheme}://{target.netloc.rpartition('@')[2]}{target.path}"
    return neutralise(address[:_MAX_ADDRESS])


def words_of(body: object, depth: int = _MAX_DEPTH) -> str:
    """Return a server's own words from the body of its error; '' if it has none."""
    if isinstance(body, list):
        return "; ".join(filter(None, (words_of(each, depth - 1) for each in body[:_MAX_ERRORS] if depth)))
    if isinstance(body, dict):
        found = {str(name).lower(): each for name, each in body.items() if each} if depth else {}
        words = next(filter(None, (words_of(found[name], depth - 1) for name in _WORDS if name in found)), "")
        if words and isinstance(body.get("loc"), list):  # the field that FastAPI's message is about
            words = (
                f"{words}: {'.'.join(str(part) for part in body['loc'][:_MAX_ERRORS] if isinstance(part, (str, int)))}"
            )
        return f"{words}: {raw}" if words and (raw := _raw(body.get("metadata"))) else words
    return body if isinstance(body, str) else ""


def _raw(metadata: object) -> str:
    """Return the words of the server behind a router, such as OpenRouter, whose own say only that it failed."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return raw if isinstance(raw, str) else ""
