"""The JSON of the API server, bounded: one object, or the lines of a watch in whatever pieces they come."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import requests

from agent_tools.errors import EngineError
from agent_tools.limits import MIB

MAX_LINE = 4 * MIB


class Lines:
    """The objects of a watch, one a line."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._head = bytearray()  # of the line that is not whole yet
        self._whole: list[bytes] = []

    def next(self) -> dict[str, Any] | None:
        """Return the next object; None at the end, or when nothing has come for too long.

        Raises:
            EngineError: a line is too long, or is none.
        """
        while not self._whole:
            piece = self._piece()
            if not piece:
                return None
            self._whole = self._split(piece)
        return parsed(self._whole.pop(0))

    def _piece(self) -> bytes:
        with contextlib.suppress(requests.RequestException, OSError):  # a watch may end at any time
            return next(self._pieces, b"")
        return b""

    def _split(self, piece: bytes) -> list[bytes]:
        *ended, rest = piece.split(b"\n")
        lines = []
        for line in ended:
            lines.append(bytes(self._head) + line)
            self._head.clear()
        self._head += rest
        if max(map(len, lines), default=0) > MAX_LINE or len(self._head) > MAX_LINE:
            raise EngineError(f"The Kubernetes API server says more than {MAX_LINE:,} bytes of one object.")
        return [line for line in lines if line.strip()]


def parsed(content: bytes) -> dict[str, Any]:
    """Read one object.

    Raises:
        EngineError: it is none.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise EngineError("The Kubernetes API server's answer is no JSON.") from exc
    if not isinstance(found, dict):
        raise EngineError("The Kubernetes API server's answer is no JSON object.")
    return found
