"""Messages of host calls on a byte stream, for both ends. Standard library only.

Each is a frame of parts (framing.py): a head, which is a JSON object, and attachments.

    guest -> host   {"op": "call", "id", "name", "args": [..], "kwargs": {..}} | {"op": "cancel", "id"}
    host -> guest   {"op": "result", "id", "value"} | {"op": "error", "id", "kind", "type", "message"}
                    {"op": "hold"} | {"op": "go"}   the run's clock stands still, and goes on

The head of a long call begins with "op", "id" and "name", in this order, so that it can be refused unread.
"""

import gc
import json
import re
from collections.abc import Callable
from typing import Any

from .framing import FrameError, FrameReader, TooLarge, first_part, pack_parts, split

MESSAGE = 1  # the one kind of frame
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_HEAD_BYTES = 8 * 1024 * 1024  # of it beside the attachments: read in one piece, while no other thread has its turn
MAX_MARKS = 100_000  # commas, brackets and braces: each may become an object many times its size; and attachments
MAX_ANSWER_MARKS = 1_000_000  # of what the host sends
MAX_NUMBER_CHARS = 32  # of a number in a head: longer ones cross as texts
SHORT_HEAD = 1024  # bytes up to which a head is read as soon as it could be refused
LONG_HEAD = 64 * 1024  # bytes from which a head is read in steps
_to_json, _from_json = json.JSONEncoder().encode, json.JSONDecoder().decode
_CALL = re.compile(rb'\{\s*"op":\s*"call",\s*"id":\s*(\d{1,15}),\s*"name":\s*"([ !#-\[\]-~]{0,200})"')

Message = tuple[dict[str, Any], list[bytes], int]
Screen = Callable[[int, str, int], bool]


def pack(
    head: dict[str, Any], attachments: list[bytes], limit: int = MAX_MESSAGE_BYTES, max_marks: int = MAX_MARKS
) -> bytes:
    """Return one message as bytes.

    Raises: TooLarge: it is longer than `limit`, its head than `MAX_HEAD_BYTES`, or it has more parts than `max_marks`.
    """
    data = _to_json(head).encode()
    if len(data) > MAX_HEAD_BYTES:
        raise TooLarge(
            f"{len(data):,} bytes of it are JSON, more than {MAX_HEAD_BYTES:,}; send an array, a frame or a text"
        )
    if _has_more_marks(data, max_marks - len(attachments)):
        raise TooLarge(f"it has more than {max_marks:,} parts; an array, a frame or a text counts as one")
    return pack_parts(MESSAGE, [data, *attachments], limit)


class CallReader(FrameReader[Message]):
    """Cuts a byte stream into messages: the head, the attachments, and the size in bytes of each.

    `screen` is called with the number, the name and the size of each long call whose head begins with them.
    A call that it rejects is skipped, and costs no more than its bytes.
    """

    def __init__(
        self, limit: int = MAX_MESSAGE_BYTES, screen: Screen | None = None, max_marks: int = MAX_MARKS
    ) -> None:
        super().__init__({MESSAGE: limit + 65536}.get, self._message)
        self._screen = screen
        self._max_marks = max_marks

    def _message(self, _: int, payload: bytes) -> Message | None:
        start, size = first_part(payload)
        begins = None
        if self._screen and size > SHORT_HEAD:
            begins = _CALL.match(payload, start, start + size)
            if begins and not self._screen(int(begins[1]), begins[2].decode(), len(payload)):
                return None
            if not begins and size > LONG_HEAD:
                raise FrameError("a long call that does not begin with what it is")
        data, *attachments = split(payload, 1, self._max_marks)
        head = _read(data, self._max_marks - len(attachments))
        if begins and [head.get("op"), head.get("id"), head.get("name")] != [
            "call",
            int(begins[1]),
            begins[2].decode(),
        ]:
            raise FrameError("a call that is another than it began as")
        return head, attachments, len(payload)


def _has_more_marks(data: bytes, most: int) -> bool:
    return len(data) > most and sum(map(data.count, (b",", b"[", b"{"))) > most


def _read(data: bytes, max_marks: int) -> dict[str, Any]:
    if len(data) > MAX_HEAD_BYTES or _has_more_marks(data, max_marks):
        raise FrameError("a message of too many parts")
    head = _from_json(data.decode()) if len(data) <= LONG_HEAD else _in_steps(data)
    if not isinstance(head, dict):
        raise FrameError("a message that is no object")
    return head


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
