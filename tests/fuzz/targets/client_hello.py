"""The greeting of a TLS client, and what follows it: bytes as they are, at once or in pieces.

The first byte of the input is the size of a piece, 0 for all at once (see pieces.py); the rest is what is sent.
"""

from __future__ import annotations

from agent_tools.runtime.egress.client_hello import HelloReader, SecondHello
from agent_tools.runtime.egress.refusals import EgressRefused
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of
from tests.unit.runtime.egress.hellos import ALPN, NAME, NOTICE, hello, record, server_name

MOST = 16 * 1024


def greet(parts: Parts) -> None:
    """Read what comes: what goes on is what was sent, whole as far as it goes, and is bounded until a name is known."""
    reader, second, passed, data = HelloReader(MOST), None, b"", b"".join(parts)
    for part in parts:
        if second is None:
            name = reader.feed(part)
            assert len(reader.data) <= MOST + len(part) + 5
            if name is None:
                continue
            assert name.isascii()
            passed, second = bytes(reader.data[: reader.end]), SecondHello(name, MOST)
            part = bytes(reader.data[reader.end :])
        passed += second.feed(part)
        assert data.startswith(passed)
    if second and second.is_over:
        assert passed == data


TARGET = Target(
    greet,
    pieces_of,
    allowed=(EgressRefused,),
    words=(
        hello(server_name(NAME)),
        hello(server_name(NAME), ALPN),
        hello(server_name(NAME), (0xFE0D, b"\0")),
        hello(ALPN),
        NOTICE,
        record(b"x" * 20, 23),
        record(b"\1\0\x3f\xff"),
        record(b""),
        b"\x16\3\1",
        unfold.repeat(6, 12),
        unfold.repeat(1, 12),
    ),
)
