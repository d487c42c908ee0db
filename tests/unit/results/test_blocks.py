"""A run as blocks for a chat model: text and pictures in order, and no path of the host in either."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

import pytest

from agent_tools.results.blocks import NOTHING, PictureStyle
from agent_tools.results.execution import (
    Display,
    Error,
    Execution,
    Notice,
    Omitted,
    Picture,
    Result,
    StagedFile,
    Stream,
    Text,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
PICTURE = Picture("image/png", PNG, path="/home/someone/secret/figure.png")
DRAWN = Execution(
    (Stream("stdout", "before\n"), Display({"image/png": PNG, "text/plain": "<Figure>"}), Result({"text/plain": "7"})),
    saved=(PICTURE,),
)


def test_text_around_a_picture_stays_around_it() -> None:
    before, picture, after = DRAWN.blocks()
    assert before == Text("stdout:\n\n```\nbefore\n\n```")
    assert picture == PICTURE
    assert after == Text("execute_result:\n\n```\n7\n```")


@pytest.mark.parametrize(
    ("style", "told"), [("name", "[fig-001: image/png, 28 bytes]"), ("none", "[fig-001 is not shown]")]
)
def test_a_picture_can_be_told_instead(style: PictureStyle, told: str) -> None:
    (text,) = DRAWN.blocks(style)
    assert isinstance(text, Text)
    assert text.text.split("\n\n")[-3] == told


def test_no_path_of_the_host_is_told() -> None:
    files = (
        StagedFile("/home/someone/secret/data.csv", "data-1.csv", is_renamed=True),
        StagedFile("https://example.org/secret/other.csv", None, error="it is gone"),
    )
    for style in ("inline", "name", "none"):
        blocks = replace(DRAWN, files=files).blocks(style)
        assert "data.csv is available as data-1.csv" in str(blocks[0])
        assert "secret" not in repr(blocks)
        assert not any(isinstance(block, Picture) and block.path for block in blocks)


def test_neighbouring_text_is_joined_once() -> None:
    made = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event == "call" and frame.f_code is Text.__init__.__code__

    alternating = Execution((Stream("stdout", "o"), Stream("stderr", "e")) * 500)
    sys.setprofile(note)
    try:
        (text,) = alternating.blocks()
    finally:
        sys.setprofile(None)
    assert isinstance(text, Text)
    assert text.text.count("stderr:\n\n```\ne\n```") == 500
    assert made == 1


def test_a_run_without_outputs_says_so() -> None:
    assert Execution().blocks() == [Text(NOTHING)]


def test_neighbouring_text_is_one_block() -> None:
    error = Error("E", "v", "Traceback: v")
    outputs = (
        Stream("stdout", "a"),
        Omitted("5 characters"),
        Stream("stderr", "b"),
        Notice("The disk is full."),
        error,
    )
    (text,) = Execution(outputs).blocks()
    assert isinstance(text, Text)
    parts = ("stdout:", "5 characters", "stderr:", "note:", "The disk is full.", "error:")
    assert [part for part in parts if part in text.text] == list(parts)
