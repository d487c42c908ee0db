"""Halves of characters in what models send."""

from __future__ import annotations

import pytest

from agent_tools.agents.turn.surrogates import joined, without_halves
from agent_tools.models.base import ArgumentsDelta, CallComplete, CallStarted, Delta, Finish, ReasoningDelta, TextDelta

SMILE = "\U0001f600"


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("a", "a"),
        ("\ud83d\ude00", SMILE),
        ("\ud83d", "\ufffd"),
        ("\ude00\ud83da", "\ufffd\ufffda"),
        ("é" + SMILE, "é" + SMILE),
    ],
)
def test_text_is_whole(given: str, whole: str) -> None:
    assert joined(given) == whole


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ([TextDelta("a\ud83d"), TextDelta("\ude00b"), Finish("stop")], [TextDelta("a"), TextDelta(SMILE + "b")]),
        ([TextDelta("a\ud83d"), Finish("stop")], [TextDelta("a"), TextDelta("\ufffd")]),
        ([TextDelta("\ud83d"), ReasoningDelta("\ude00")], [TextDelta("\ufffd"), ReasoningDelta("\ufffd")]),
        ([TextDelta("\ud83d")], [TextDelta("\ufffd")]),
        ([ArgumentsDelta(0, "\ud83d"), ArgumentsDelta(1, "\ude00")], [ArgumentsDelta(n, "\ufffd") for n in (0, 1)]),
        ([CallComplete(0, "c", "f", "\ud83d")], [CallComplete(0, "c", "f", "\ufffd")]),
        ([CallStarted(0, "c\ud83d", "f\ude00")], [CallStarted(0, "c\ufffd", "f\ufffd")]),
        ([CallComplete(0, "\ud83d", "\ude00", "")], [CallComplete(0, "\ufffd", "\ufffd", "")]),
    ],
)
def test_what_was_sent_apart_is_joined(given: list[Delta], whole: list[Delta]) -> None:
    assert [each for each in without_halves(iter(given)) if not isinstance(each, Finish)] == whole
