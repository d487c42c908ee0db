"""What grows with a reply is joined when it is read, and not with each piece."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent_tools.agents.steps import CallBegun, CallDelta
from agent_tools.agents.turn.round import Round
from agent_tools.cli.chat import _View
from agent_tools.cli.markdown_writer import MarkdownWriter
from agent_tools.gateway.responses.composer import Composer, ResponseContext
from agent_tools.gateway.responses.request import fresh_body, read_request
from agent_tools.growing_text import GrowingText
from agent_tools.models.base import Finish, ReasoningDelta, TextDelta
from tests.gateway.asking import CODE_TOOL


def test_pieces_are_joined() -> None:
    text = GrowingText()
    assert (str(text), bool(text)) == ("", False)
    for piece in ("a", "", "b"):
        text.append(piece)
    assert (str(text), bool(text)) == ("ab", True)
    text.append("c")
    assert [str(text), str(text)] == ["abc", "abc"]


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every join from now on."""
    found: list[str] = []
    join: Callable[[GrowingText], str] = GrowingText.__str__

    def counted(text: GrowingText) -> str:
        found.append(join(text))
        return found[-1]

    monkeypatch.setattr(GrowingText, "__str__", counted)
    return found


@pytest.mark.parametrize("delta", [TextDelta("a word "), ReasoningDelta("a word ")])
def test_a_reply_is_not_joined_with_each_delta(joins: list[str], delta: Any) -> None:
    answer = Round(1, {"python": None})

    def deltas() -> Iterator[Any]:
        yield from [delta] * 1_000
        assert not joins
        yield Finish("stop")

    assert sum(len(step.text) for step in answer.read(deltas()) if isinstance(step, type(delta))) == 7_000
    assert len(joins) < 10


@pytest.mark.parametrize(
    "step", [TextDelta("a"), ReasoningDelta("a"), CallDelta("c", "a", "a"), CallDelta("f", "a", "")]
)
def test_items_of_a_response_are_not_joined_with_each_step(joins: list[str], step: Any) -> None:
    request = read_request({"model": "m", "input": "1", "tools": [CODE_TOOL, {"type": "function", "name": "f"}]})
    scene = ResponseContext("cntr_1", lambda _: None, lambda *_: "", {"code_interpreter": "python"})
    composer = Composer(fresh_body(request), request, scene)
    for each in (CallBegun("c", "python"), CallBegun("f", "f"), step, step):
        list(composer.feed(each))
    joins.clear()
    assert sum(len(event["delta"]) for _ in range(1_000) for event in composer.feed(step)) == 1_000
    assert not joins


def test_a_line_on_a_terminal_is_joined_once(joins: list[str], tmp_path: Path) -> None:
    writer, view = MarkdownWriter(Console(file=io.StringIO())), _View(tmp_path)
    for _ in range(1_000):
        writer.write("a word ")
        view.show(CallDelta("c", "a", "a"))
    assert not joins
    writer.end()
    view.show(CallDelta("c", "\n", "\n"))
    assert joins == ["a word " * 1_000, "a" * 1_000]
