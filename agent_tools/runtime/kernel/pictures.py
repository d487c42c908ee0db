"""Checks pictures from the guest without decoding them: hostile input can exploit bugs of decoders.

PNG: https://www.w3.org/TR/png-3/#5DataRep   JPEG: ITU-T T.81, annex B   GIF: GIF89a specification, 17 and 18
"""

from __future__ import annotations

import base64
import binascii
import struct

from agent_tools.errors import AgentToolsError
from agent_tools.limits import Limits

MAX_IMAGE_PIXELS = 25_000_000  # width times height of one picture
MAX_SEGMENTS = 1_000  # of a JPEG, with fill bytes, before its dimensions
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
JPEG_MAGIC = b"\xff\xd8\xff"
GIF_MAGICS = (b"GIF87a", b"GIF89a")
_WHITESPACE = b" \t\n\r\v\f"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF markers, which carry the dimensions


class PictureRefused(AgentToolsError, ValueError):
    """A picture cannot be kept; the message says why."""


def check_picture(mime: str, encoded: object, limits: Limits) -> bytes:
    """Return the bytes of a base64 picture of one of PICTURE_TYPES, whose format and size were checked.

    Raises:
        PictureRefused: it has another format, or is over the limits.
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
    size = _SIZES[mime](data)
    if size is None:
        raise PictureRefused(f"not {mime}")
    if size[0] * size[1] > MAX_IMAGE_PIXELS:
        raise PictureRefused(f"{size[0]} x {size[1]} pixels, more than {MAX_IMAGE_PIXELS:,}")
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
    for _ in range(MAX_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            break
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return (width, height) if width and height else None
        if length < 2:
            return None
        at += 2 + length
    return None


def _gif_size(data: bytes) -> tuple[int, int] | None:
    if not data.startswith(GIF_MAGICS) or len(data) < 14:
        return None
    width, height = struct.unpack("<HH", data[6:10])
    return (width, height) if width and height else None


_SIZES = {"image/png": _png_size, "image/jpeg": _jpeg_size, "image/gif": _gif_size}
