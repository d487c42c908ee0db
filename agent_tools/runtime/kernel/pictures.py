"""Checks pictures the guest sent, without decoding them: a decoder fed with hostile input is itself a way in.

PNG: https://www.w3.org/TR/png-3/#5DataRep   JPEG: ITU-T T.81, annex B
"""

from __future__ import annotations

import base64
import binascii
import struct

from agent_tools.errors import AgentToolsError
from agent_tools.limits import Limits

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
JPEG_MAGIC = b"\xff\xd8\xff"
_WHITESPACE = b" \t\n\r\v\f"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF markers, which carry the dimensions


class PictureRefused(AgentToolsError, ValueError):
    """A picture cannot be kept; the message says why."""


def check_picture(mime: str, encoded: object, limits: Limits) -> bytes:
    """Return the bytes of a base64 PNG or JPEG that is what it says and within the limits.

    Raises:
        PictureRefused: otherwise.
    """
    if not isinstance(encoded, str):
        raise PictureRefused("not base64 text")
    try:
        packed = encoded.encode("ascii").translate(None, _WHITESPACE)
    except UnicodeEncodeError as exc:
        raise PictureRefused("not base64 text") from exc
    if len(packed) // 4 * 3 - packed[-2:].count(b"=") > limits.max_image_bytes:
        raise PictureRefused(f"larger than {limits.max_image_bytes:,} bytes")
    try:
        data = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise PictureRefused("not base64 text") from exc
    size = _png_size(data) if mime == "image/png" else _jpeg_size(data)
    if size is None:
        raise PictureRefused(f"not {mime}")
    if size[0] * size[1] > limits.max_image_pixels:
        raise PictureRefused(f"{size[0]} x {size[1]} pixels, more than {limits.max_image_pixels:,}")
    return data


def _png_size(data: bytes) -> tuple[int, int] | None:
    if not data.startswith(PNG_MAGIC) or data[12:16] != b"IHDR" or len(data) < 33:
        return None
    width, height = struct.unpack(">II", data[16:24])
    return (width, height) if width and height else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    if not data.startswith(JPEG_MAGIC):
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return (width, height) if width and height else None
        if length < 2:
            return None
        at += 2 + length
    return None
