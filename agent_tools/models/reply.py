"""One reply of an OpenAI-compatible server, read in a thread of its own, so that `close` ends a wait at any point."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import chain
from typing import Any, Union

from agent_tools.errors import ModelError
from agent_tools.models.base import Delta, Json
from agent_tools.models.chunks import ChunkReader

_NO_COMPLETION = "The model's server sent something that is not a chat completion."
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


class Reply(Iterator[Delta]):
    """The deltas of a streamed completion.

    A client's stream cannot be interrupted while it waits for bytes, so a thread reads it and hands the deltas over.
    `close`, from any thread, ends iteration at once and hangs up. Before the server's first byte there is no connection
    to hang up on yet; then it is closed as soon as there is. Errors are raised where the deltas are read.
    """

    def __init__(
        self,
        open_stream: Callable[[], Any],
        translated: Callable[[], AbstractContextManager[None]],
        reader: ChunkReader,
    ) -> None:
        self._open = open_stream
        self._translated = translated
        self._reader = reader
        self._stream: Any = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[Union[Delta, BaseException, None]] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="model-reply", daemon=True).start()

    def __next__(self) -> Delta:
        item = None if self._is_closed else self._arrived.get()
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
            stream = self._stream
        if not was_closed:
            self._arrived.put(None)
            if stream is not None:
                _hang_up(stream)

    def _receive(self) -> None:
        try:
            with self._translated(), closing(self._open()) as stream:
                with self._lock:
                    self._stream = stream
                if not self._is_closed:
                    for delta in _deltas(stream, self._reader):
                        self._arrived.put(delta)
        except BaseException as exc:  # noqa: BLE001  (raised again where the deltas are read)
            self._arrived.put(exc)
        finally:
            with self._lock:
                self._stream = None
            self._arrived.put(None)


def _deltas(stream: Any, reader: ChunkReader) -> Iterator[Delta]:
    arriving = stream.response.iter_bytes()
    head = _head(arriving)
    if head.lstrip().startswith(b"{"):  # no event begins so: the server has ignored that a stream was asked for
        yield from _read(reader.read_whole, _completion(head + b"".join(arriving)))
    else:
        stream.response.iter_bytes = lambda *_, **__: chain((head,), arriving)
        for chunk in stream:
            yield from _read(reader.read, chunk)
        if reader.reason is None and not getattr(arriving, "has_end", False):
            raise ModelError("The model's server stopped in the middle of its answer.", is_retryable=True)
    yield from reader.finish()


def _head(arriving: Iterator[bytes]) -> bytes:
    """Return the first bytes that are not only white space, with all before them."""
    found: list[bytes] = []
    for data in arriving:
        found.append(data)
        if data.strip():
            break
    return b"".join(found)


def _completion(body: bytes) -> Json:
    """Read a whole completion.

    Raises:
        ModelError: it is an error, or no object.
    """
    completion = json.loads(body)
    if not isinstance(completion, dict):
        raise ModelError(_NO_COMPLETION)
    if error := completion.get("error"):
        words = error.get("message") if isinstance(error, dict) else error
        raise ModelError("The model's server ended its answer with an error.", detail=str(words or ""))
    return completion


def _read(read: Callable[[Json], Iterator[Delta]], chunk: Any) -> list[Delta]:
    """Read a chunk as the client has it, or a whole completion.

    Raises:
        ModelError: it is malformed.
    """
    try:
        return list(read(chunk if isinstance(chunk, dict) else chunk.to_dict(warnings=False)))
    except _MALFORMED as exc:
        raise ModelError(_NO_COMPLETION) from exc


def _hang_up(stream: Any) -> None:
    """Shut the connection down, which also wakes the thread that reads from it; that thread then closes it."""
    with contextlib.suppress(KeyError, AttributeError, OSError):
        connection = stream.response.extensions["network_stream"].get_extra_info("socket")
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS sockets too: only the plain call is thread-safe
