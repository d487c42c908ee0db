"""Files that a model asks to see. The first byte is the kind of file; 0x80 in it says that there is more of it."""

from __future__ import annotations

import io

from agent_tools.tools.file_preview import MAX_CHARS, preview
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target

KINDS = ("json", "jsonl", "csv", "tsv", "txt")
MOST = MIB


def unfold_file(data: bytes) -> Parts:
    """The kind, and the content."""
    return [data[:1] or b"\0", unfold.text(data[1:], MOST)]


def look_at(parts: Parts) -> None:
    """Preview it; the answer is short whatever is in it."""
    kind, content = parts
    name = f"file.{KINDS[(kind[0] & 0x7F) % len(KINDS)]}"
    shown = preview(io.BytesIO(content), name, len(content) + bool(kind[0] & 0x80))
    assert len(shown) < MAX_CHARS + 500
    shown.encode()


TARGET = Target(
    look_at,
    unfold_file,
    bound=Bound(seconds_per_byte=5e-6, bytes=4 * MIB, bytes_per_byte=16),
    words=(
        b'{"a": ',
        b"[]",
        b"{}",
        b"[],",
        b"\n",
        b'""',
        b";",
        b"\t",
        b"|",
        b"\xff\xfe",
        b"2020-01-01",
        unfold.repeat(3, 12),
    ),
)
