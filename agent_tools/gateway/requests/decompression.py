"""Compressed bodies of requests, unpacked piece by piece, so that a small body never costs much memory at once.

Encodings: RFC 1952 (gzip) and RFC 8878 (zstd), of which RFC 9659 bounds the window to 8 MiB. The reader of a body
bounds what all of it unpacks to.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from agent_tools.gateway.requests.api_errors import ApiError, invalid
from agent_tools.limits import KIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHUNK_BYTES = 256 * KIB  # bytes
MAX_WINDOW_LOG = 23


def _gunzipped(stream: Any, data: bytes) -> Iterator[bytes]:
    while piece := stream.decompress(data, CHUNK_BYTES):
        yield piece
        data = stream.unconsumed_tail


def _unpacked_zstd(stream: Any, data: bytes) -> Iterator[bytes]:
    while data or not (stream.needs_input or stream.eof):
        if piece := stream.decompress(data, CHUNK_BYTES):  # EOFError: there is data after the end
            yield piece
        data = b""


def _new_zstd() -> Any:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})


class Decoder:
    """Unpacks one body with a given compression library."""

    def __init__(self, name: str, new: Callable[[], Any], unpack: Callable[[Any, bytes], Iterator[bytes]]) -> None:
        self._name = name
        self._stream = new()
        self._unpack = unpack
        self._has_begun = False

    def unpacked(self, data: bytes) -> Iterator[bytes]:
        """Yield these further bytes, unpacked, in pieces of at most `CHUNK_BYTES`.

        Raises:
            ApiError: 400, they are not of this encoding.
        """
        self._has_begun = self._has_begun or bool(data)
        try:
            yield from self._unpack(self._stream, data)
        except (zlib.error, zstd.ZstdError, EOFError) as exc:
            raise self._broken() from exc
        if self._stream.eof and self._stream.unused_data:
            raise self._broken()

    def finish(self) -> None:
        """Check that the body has come to its end.

        Raises:
            ApiError: 400, it has not.
        """
        if self._has_begun and not self._stream.eof:
            raise self._broken()

    def _broken(self) -> ApiError:
        message = f"The body does not match its Content-Encoding: expected one complete stream of {self._name}."
        return invalid(message, code="malformed_body")


def decoder_of(encoding: str) -> Decoder | None:
    """Return a decoder for a `Content-Encoding`; None if there is nothing to unpack.

    Raises:
        ApiError: 415, the encoding is another one.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return Decoder("gzip", partial(zlib.decompressobj, wbits=31), _gunzipped)
        case "zstd":
            return Decoder("zstd", _new_zstd, _unpacked_zstd)
    message = f"Content-Encoding {encoding!r:.40} is not supported: send gzip, zstd, or an uncompressed body."
    raise ApiError(415, message, code="unsupported_encoding", headers={"Accept-Encoding": "gzip, zstd"})
