"""What a shell command prints, made text and cut, while it comes in pieces on both streams."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from agent_tools.text import neutralise
from agent_tools.tools.output_text import OutputText
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target
from tests.fuzz.pieces import pieces_of

NAMES: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")
LIMIT = 1_000
NOTE = 60  # characters of the note of what was left out, at most


def take_output(parts: Parts) -> None:
    """Feed it; what was given, joined, is what is there, safe to show and within its limit."""
    output = OutputText(LIMIT)
    given: dict[str, str] = defaultdict(str)
    for number, piece in enumerate(parts):
        name = NAMES[number % 2]
        given[name] += output.add(name, piece)
    for name in NAMES:
        given[name] += output.finish(name)
        assert given[name] == output.text(name)
        assert "\x1b" not in given[name]
        assert not any(char in given[name] for char in "\0\x07\x9b")
        given[name].encode()
    assert sum(map(len, given.values())) <= LIMIT + 2 * NOTE
    whole = [neutralise(part.decode("utf-8", "replace")) for part in parts[:1]]
    if len(parts) == 1 and len(whole[0]) <= LIMIT:
        assert given["stdout"] in (whole[0], f"{whole[0]}\ufffd")  # half a character after an escape without an end


TARGET = Target(
    take_output,
    lambda data: pieces_of(data, 64 * 1024),
    bound=Bound(seconds_per_byte=20e-6),
    words=(
        b"\x1b[31m",
        b"\x1b]0;",
        b"\x1b",
        b"\x07",
        b"\xf0\x9f\x98",
        b"\xe2\x80\x8b",
        b"\r",
        b"\n",
        unfold.repeat(1, 12),
    ),
)
