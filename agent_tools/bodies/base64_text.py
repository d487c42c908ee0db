"""Bytes in JSON, as base64. Large ones are read and written in pieces, between which other threads run."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from pydantic import BeforeValidator

from agent_tools.limits import KIB

_PIECE = 768 * KIB  # bytes, or characters of base64; divisible by 3 and by 4


def encoded(data: bytes) -> str:
    """Return bytes as base64."""
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    return "".join(base64.b64encode(piece).decode() for piece in pieces)


def _decoded(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    pieces = [given[start : start + _PIECE] for start in range(0, len(given), _PIECE)]
    if any("=" in piece for piece in pieces[:-1]):
        raise ValueError("this is no base64")
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)


Base64 = Annotated[bytes, BeforeValidator(_decoded)]
"""The bytes that a text of base64 stands for."""
