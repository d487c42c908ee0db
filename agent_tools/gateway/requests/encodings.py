"""Compressed bodies of requests, unpacked piece by piece, so that a small body never costs much memory at once.

Encodings: RFC 1952 (gzip) and RFC 8878 (zstd), of which RFC 9659 bounds the window to 8 MiB. The bound of a whole body
is of what it unpacks to, and is kept by whoever reads it.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from agent_tools.gateway.requests.failures import ApiError, invalid
from agent_tools.limits import KIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE = 256 * KIB  # bytes
MAX_WINDOW_LOG = 23


class Decoder(Protocol):
    """One body's decoder."""

    def unpacked(self, data: bytes) -> Iterator[bytes]:
        """Yield what these further bytes unpack to, in pieces of at most `PIECE`.

        Raises:
            ApiError: 400, they are not of this encoding.
        """
        ...

    def finish(self) -> None:
        """Check that the body has come to its end.

        Raises:
            ApiError: 400, it has not.
        """
        ...


def decoder_of(encoding: str) -> Decoder | None:
    """Return a decoder for a `Content-Encoding`; None if there is nothing to unpack.

    Raises:
        ApiError: 415, the encoding is another one.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in _DECODERS:
        return _DECODERS[name]()
    message = f"Content-Encoding {encoding!r:.40} is not read here: send gzip, zstd, or the body as it is."
    raise ApiError(415, message, code="unsupported_encoding", headers={"Accept-Encoding": "gzip, zstd"})


class _Gzip:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._has_begun = False

    def unpacked(self, data: bytes) -> Iterator[bytes]:
        self._has_begun = self._has_begun or bool(data)
        try:
            while piece := self._stream.decompress(data, PIECE):
                yield piece
                data = self._stream.unconsumed_tail
        except zlib.error as exc:
            raise _broken("gzip") from exc
        if self._stream.unused_data:
            raise _broken("gzip")

    def finish(self) -> None:
        if self._has_begun and not self._stream.eof:
            raise _broken("gzip")


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})
        self._has_begun = False

    def unpacked(self, data: bytes) -> Iterator[bytes]:
        self._has_begun = self._has_begun or bool(data)
        while data or not (self._stream.needs_input or self._stream.eof):
            if self._stream.eof:
                raise _broken("zstd")
            try:
                piece = self._stream.decompress(data, PIECE)
            except zstd.ZstdError as exc:
                raise _broken("zstd") from exc
            data = b""
            if piece:
                yield piece
        if self._stream.eof and self._stream.unused_data:
            raise _broken("zstd")

    def finish(self) -> None:
        if self._has_begun and not self._stream.eof:
            raise _broken("zstd")


_DECODERS: dict[str, Callable[[], Decoder]] = {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}


def _broken(name: str) -> ApiError:
    return invalid(
        f"The body is not what its Content-Encoding says: one whole stream of {name}.", code="malformed_body"
    )
