"""Reasoning between tags, in a reply's text."""

from __future__ import annotations

from agent_tools.models.base import ReasoningDelta
from agent_tools.models.dialect.profile import Thinking
from agent_tools.models.dialect.thinking import PAIRS, ThinkingSplitter
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts

MODES: tuple[Thinking, ...] = ("tagged", "opened", "text")


def split(parts: Parts) -> None:
    """Split it as every profile has it: only tags and white space are lost, and never any of the answer."""
    pieces = list(texts(parts))
    whole = "".join(pieces)
    for mode in MODES:
        splitter = ThinkingSplitter(mode)
        found = [each for piece in pieces for each in splitter.feed(piece)] + list(splitter.finish())
        answer = "".join(each.text for each in found if not isinstance(each, ReasoningDelta))
        thought = "".join(each.text for each in found if isinstance(each, ReasoningDelta))
        assert whole.endswith(answer), "the answer is not the end of what came"
        assert thought in whole
        assert mode != "text" or answer == whole


TARGET = Target(
    split,
    pieces_of,
    words=(
        *(tag.encode() for pair in PAIRS for tag in pair),
        *(b"\n", b"  ", b"<", b"</", b"Hm.", unfold.repeat(1, 12), unfold.repeat(7, 12)),
    ),
)
