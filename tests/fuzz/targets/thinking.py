"""Reasoning between tags, in a reply's text."""

from __future__ import annotations

from agent_tools.models.base import ReasoningDelta
from agent_tools.models.dialect.framing import TOKEN
from agent_tools.models.dialect.profile import Thinking
from agent_tools.models.dialect.thinking import HEADINGS, ThinkingSplitter
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts
from tests.thinking_tags import END_MARKS, PAIRS

MODES: tuple[Thinking, ...] = ("tagged", "opened", "text")


def split(parts: Parts) -> None:
    """Split it as every profile has it: only tags, end marks and white space are lost, and nothing comes twice."""
    pieces = list(texts(parts))
    whole = "".join(pieces)
    for mode in MODES:
        splitter = ThinkingSplitter(mode)
        found = [each for piece in pieces for each in splitter.feed(piece)] + list(splitter.finish())
        answer = "".join(each.text for each in found if not isinstance(each, ReasoningDelta))
        thought = "".join(each.text for each in found if isinstance(each, ReasoningDelta))
        assert all(each.text.strip() in whole for each in found)
        assert len(answer.replace("\n\n", "")) + len(thought) <= len(whole)
        assert mode != "text" or answer == whole
        if TOKEN.search(whole) is None and "assistant" not in whole:
            assert whole.endswith(answer), "the answer is not the end of what came"


TARGET = Target(
    split,
    pieces_of,
    words=(
        *(tag.encode() for pair in PAIRS for tag in pair),
        *(tag.encode() for tag in (*HEADINGS, *END_MARKS)),
        *(b"\n", b"  ", b"<", b"</", b"Hm.", unfold.repeat(1, 12), unfold.repeat(7, 12)),
    ),
)
