"""An API server's half of an exec stream: the frames after its handshake, and the lines of a watch.

The first byte chooses: `L` a watch, `R` raw bytes; anything else is payloads with MARK between them, each a message
whose channel is its first byte.
"""

from __future__ import annotations

from websockets.frames import Frame, Opcode

from agent_tools.engines.kubernetes.answers import Lines
from agent_tools.engines.kubernetes.exec_channels import MAX_SAID, Channels
from agent_tools.engines.kubernetes.progress import progress_of
from agent_tools.engines.kubernetes.warm_pods import progress_of_claim
from agent_tools.errors import EngineError
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"
PIECE = 4096  # bytes that come at once


def unfold_stream(data: bytes) -> Parts:
    """The kind, and what the server sends, in pieces."""
    kind, rest = data[:1], data[1:]
    if kind in (b"L", b"R"):
        whole = unfold.text(rest)
    else:
        whole = b"".join(_frame(unfold.text(part, 64 * 1024)) for part in rest.split(MARK))[: unfold.MOST]
    return [kind, *(whole[at : at + PIECE] for at in range(0, len(whole), PIECE))]


def _frame(message: bytes) -> bytes:
    return Frame(Opcode.BINARY, message).serialize(mask=False)


def hear(parts: Parts) -> None:
    """Take it all in; nothing is held beyond what was said."""
    kind, *pieces = parts
    if kind == b"L":
        _watch(pieces)
        return
    channels = Channels()
    found = sum(len(channels.feed(piece)) for piece in (*pieces, b""))
    assert channels.has_ended
    assert found <= sum(map(len, pieces))
    assert len(channels.last_words) <= 2 * MAX_SAID
    channels.outgoing()


def _watch(pieces: Parts) -> None:
    lines = Lines(iter(pieces))
    while (event := lines.next()) is not None:
        found = event.get("object")
        if isinstance(found, dict):
            assert len(progress_of(found).failure) < 64 * 1024
            progress_of_claim(found)


TARGET = Target(
    hear,
    unfold_stream,
    allowed=(EngineError,),
    words=(
        MARK,
        b"\x82\x7e\xff\xff\x01",
        b"\x82\x7f\0\0\0\0\xff\xff\xff\xff",
        b"\x02\x03\x01ab",
        b"\x00\x02ab",
        b"\x89\x02hi",
        b"\x88\x02\x03\xe8",
        b'{"status": "Failure", "message": "',
        b'{"type": "ADDED", "object": {"status": {"phase": "Running", "containerStatuses": [',
        b"\n",
        unfold.repeat(1, 12),
    ),
    max_len=2048,
)
