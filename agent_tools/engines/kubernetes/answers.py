"""The JSON of the API server, bounded: one object, or the lines of a watch, in pieces of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent_tools.errors import EngineError
from agent_tools.limits import MIB
from agent_tools.text import one_line, shorten

MOST_SERVER_CHARS = 500  # characters of the server's message in an error
MAX_LINE = 4 * MIB


class Lines:
    """The objects of a watch, one a line."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._head = bytearray()  # the incomplete line
        self._whole: list[bytes] = []

    def next(self) -> dict[str, Any] | None:
        """Return the next object; None at the end.

        Raises:
            EngineError: a line is too long, or is not an object.
        """
        while not self._whole:
            piece = next(self._pieces, b"")
            if not piece:
                return None
            self._whole = self._split(piece)
        return parsed(self._whole.pop(0))

    def _split(self, piece: bytes) -> list[bytes]:
        *ended, rest = piece.split(b"\n")
        lines = []
        for line in ended:
            lines.append(bytes(self._head) + line)
            self._head.clear()
        self._head += rest
        if max(map(len, lines), default=0) > MAX_LINE or len(self._head) > MAX_LINE:
            raise EngineError(f"The Kubernetes API server sent more than {MAX_LINE:,} bytes for one object.")
        return [line for line in lines if line.strip()]


def parsed(content: bytes) -> dict[str, Any]:
    """Parse one object.

    Raises:
        EngineError: it is not a JSON object.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise EngineError("The Kubernetes API server's answer is not JSON.") from exc
    if not isinstance(found, dict):
        raise EngineError("The Kubernetes API server's answer is not a JSON object.")
    return found


def table(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list of JSON."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def readable(value: object) -> str:
    """Return a message of the server in one line of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value)
    return one_line(shorten(" ".join(text.split()), MOST_SERVER_CHARS))
