"""Messages of host calls on a byte stream, for both ends. Standard library only.

    u32 length of the head, u32 length of the attachments, head (JSON), attachments one after the other

The head is an object. Its "sizes" are the lengths of the attachments.

    guest -> host   {"op": "call", "id", "name", "args": [..], "kwargs": {..}} | {"op": "cancel", "id"}
    host -> guest   {"op": "result", "id", "value"} | {"op": "error", "id", "kind", "type", "message"}
                    {"op": "hold"} | {"op": "go"}   the run's clock stands still, and goes on

The head of a long call begins with "op", "id" and "name", in this order, so that it can be refused unread.
"""

import gc
import json
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from .framing import FrameBuffer

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_HEAD_BYTES = 8 * 1024 * 1024  # of it beside the attachments: read in one piece, while no other thread has its turn
MAX_MARKS = 100_000  # commas, brackets and braces: each may become an object many times its size
MAX_ANSWER_MARKS = 1_000_000  # of what the host sends
MAX_NUMBER_CHARS = 32  # of a number in a head: longer ones cross as texts
SHORT_HEAD = 1024  # bytes up to which a head is read as soon as it could be refused
LONG_HEAD = 64 * 1024  # bytes from which a head is read in steps
_LENGTHS = struct.Struct(">II")
_to_json, _from_json = json.JSONEncoder().encode, json.JSONDecoder().decode
_CALL = re.compile(rb'\{\s*"op":\s*"call",\s*"id":\s*(\d{1,15}),\s*"name":\s*"([ !#-\[\]-~]{0,200})"')

Message = tuple[dict[str, Any], list[bytes], int]
Screen = Callable[[int, str, int], bool]


class FrameError(ValueError):
    """The other end broke the protocol or a bound of it."""


class TooLarge(ValueError):
    """A message to send is over the limit."""


def pack(
    head: dict[str, Any], attachments: list[bytes], limit: int = MAX_MESSAGE_BYTES, max_marks: int = MAX_MARKS
) -> bytes:
    """Return one message as bytes.

    Raises: TooLarge: it is longer than `limit`, its head than `MAX_HEAD_BYTES`, or it has more parts than `max_marks`.
    """
    sizes = [len(part) for part in attachments]
    data = _to_json({**head, "sizes": sizes}).encode()
    size = len(data) + sum(sizes)
    if size > limit:
        raise TooLarge(f"{size:,} bytes are more than {limit:,}")
    if len(data) > MAX_HEAD_BYTES:
        raise TooLarge(
            f"{len(data):,} bytes of it are JSON, more than {MAX_HEAD_BYTES:,}; send an array, a frame or a text"
        )
    if _has_more_marks(data, max_marks):
        raise TooLarge(f"it has more than {max_marks:,} parts; an array, a frame or a text counts as one")
    return b"".join((_LENGTHS.pack(len(data), size - len(data)), data, *attachments))


class CallReader:
    """Cuts a byte stream into messages. A message over the limit is an error as soon as its lengths are known.

    `screen` is called with the number, the name and the size of each long call whose head begins with them.
    A call that it rejects is skipped, and costs no more than its bytes.
    """

    def __init__(
        self, limit: int = MAX_MESSAGE_BYTES, screen: Screen | None = None, max_marks: int = MAX_MARKS
    ) -> None:
        self._limit = limit
        self._screen = screen
        self._max_marks = max_marks
        self._frames = FrameBuffer(self._measure)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete now, as head, attachments and size in bytes.

        Raises:
            FrameError: the bytes are not this protocol, or over the limit.
        """
        for lengths, payload in self._frames.feed(data):
            head_size = _LENGTHS.unpack(lengths)[0]
            if (message := self._message(payload[:head_size], payload[head_size:])) is not None:
                yield message

    def _measure(self, buffer: bytearray) -> "tuple[int, int] | None":
        if len(buffer) < _LENGTHS.size:
            return None
        head_size, body_size = _LENGTHS.unpack_from(buffer)
        if head_size + body_size > self._limit + 65536 or head_size > MAX_HEAD_BYTES:
            raise FrameError(f"a message of {head_size + body_size:,} bytes")
        return _LENGTHS.size, _LENGTHS.size + head_size + body_size

    def _message(self, data: bytes, body: bytes) -> Message | None:
        begins = _CALL.match(data) if self._screen and len(data) > SHORT_HEAD else None
        size = len(data) + len(body)
        if begins is None or self._screen is None:
            if self._screen and len(data) > LONG_HEAD:
                raise FrameError("a long call that does not begin with what it is")
            return (*_read(data, body, self._max_marks), size)
        number, name = int(begins[1]), begins[2].decode()
        if not self._screen(number, name, size):
            return None
        head, attachments = _read(data, body, self._max_marks)
        if (head.get("op"), head.get("id"), head.get("name")) != ("call", number, name):
            raise FrameError("a call that is another than it began as")
        return head, attachments, size


def _has_more_marks(data: bytes, most: int) -> bool:
    return len(data) > most and sum(map(data.count, (b",", b"[", b"{"))) > most


def _read(data: bytes, body: bytes, max_marks: int) -> tuple[dict[str, Any], list[bytes]]:
    if _has_more_marks(data, max_marks):
        raise FrameError("a message of too many parts")
    try:
        head = _from_json(data.decode()) if len(data) <= LONG_HEAD else _in_steps(data)
        sizes = head.pop("sizes")
        if sizes == [] and not body:
            return head, []
        if (
            not isinstance(head, dict)
            or not all(type(size) is int and size >= 0 for size in sizes)
            or sum(sizes) != len(body)
        ):
            raise FrameError("a message whose attachments are not as it says")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as exc:
        raise FrameError(f"a malformed message ({type(exc).__name__})") from exc
    attachments, start = [], 0
    for size in sizes:
        attachments.append(body[start : start + size])
        start += size
    return head, attachments


def _in_steps(data: bytes) -> Any:
    """Parse long JSON. Python hooks during parsing let other threads run.

    The collector, which would go through all that was made again and again in one piece, does so once, afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return json.loads(data, parse_int=_int, parse_float=_float)
    finally:
        if was_enabled:
            gc.enable()


def _int(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError("a number that is too long")
    return int(text)


def _float(text: str) -> float:
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError("a number that is too long")
    return float(text)
