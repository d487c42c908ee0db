"""Compressed bodies of requests, and the count of tokens that an upstream answers.

The first byte chooses: `g` gzip, `z` zstd, of what follows as it came; `G`, `Z`: of what follows once it is compressed,
and then damaged at the place that its first two bytes name; anything else is an answer of an upstream.
"""

from __future__ import annotations

import gzip

from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.decompression import CHUNK_BYTES, decoder_of, zstd
from agent_tools.gateway.responses.token_count import MAX_COUNT, read_count
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target

MOST = 4 * MIB  # bytes after which the reader of a body gives up


def unfold_encoded(data: bytes) -> Parts:
    """The kind, and the body."""
    kind, rest = data[:1], data[1:]
    if kind in (b"G", b"Z"):
        plain = unfold.text(rest[2:], MIB)
        packed = bytearray(gzip.compress(plain, mtime=0) if kind == b"G" else zstd.compress(plain))
        packed[int.from_bytes(rest[:2], "big") % len(packed)] ^= rest[0] if rest else 0
        return [kind.lower(), bytes(packed)]
    return [kind, rest]


def read_encoded(parts: Parts) -> None:
    """Read it piece by piece, as the door does."""
    kind, data = parts
    if kind not in (b"g", b"z"):
        count = read_count(data)
        assert count is None or 0 <= count < MAX_COUNT
        return
    decoder = decoder_of("gzip" if kind == b"g" else "zstd")
    assert decoder
    total = 0
    for start in range(0, len(data), 65_536):
        for piece in decoder.unpacked(data[start : start + 65_536]):
            assert 0 < len(piece) <= CHUNK_BYTES
            total += len(piece)
            if total > MOST:
                return
    decoder.finish()


TARGET = Target(
    read_encoded,
    unfold_encoded,
    allowed=(ApiError,),
    bound=Bound(seconds_per_byte=20e-6, bytes=16 * MIB, bytes_per_byte=64),
    words=(b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b'{"count": ', b"1e999", b"[" * 64),
)
