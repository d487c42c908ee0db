"""ReAct text of every kind, whole and in pieces, read into text and calls."""

from __future__ import annotations

import pytest

from agent_tools.agents.react.parser import ReActParser
from agent_tools.models.base import ArgumentsDelta, CallComplete, Delta, TextDelta

TOOLS = {"python": False, "double": False}
PIECES = (1, 2, 3, 7, 1000)  # characters that come at once
MANY = "Thought: a\nAction: python\nAction Input: "
CASES = {
    "as told": ("Thought: I look.\nAction: python\nAction Input: 1 + 1\n", "Thought: I look.", [("python", "1 + 1")]),
    "without Thought": ("I look.\nAction: python\nAction Input: 1", "Thought: I look.", [("python", "1")]),
    "an action at once": ("Action: python\nAction Input: 1", "", [("python", "1")]),
    "no line ends": ("I look. Action: python Action Input: 1", "Thought: I look.", [("python", "1")]),
    "bold labels": ('**Action:** `double`\n**Action Input:** {"x": 1}', "", [("double", '{"x": 1}')]),
    "full-width colons": ("想\nAction：python\nAction Input：1", "Thought: 想", [("python", "1")]),
    "marks around the name": ("Action: [python]()\nAction Input: 1", "", [("python", "1")]),
    "a result made up": (f"{MANY}1\nObservation: 2\nThought: b\nFinal Answer: 2", "Thought: a", [("python", "1")]),
    "an answer made up": (f"{MANY}1\nFinal Answer: 2", "Thought: a", [("python", "1")]),
    "several actions": (
        f"{MANY}1\nThought: b\nAction: double\nAction Input: 2",
        "Thought: a",
        [("python", "1"), ("double", "2")],
    ),
    "labels in a fence": (
        f"{MANY}```py\nprint('''\nAction: x\nObservation: y\n''')\n```\nObservation: made up",
        "Thought: a",
        [("python", "```py\nprint('''\nAction: x\nObservation: y\n''')\n```")],
    ),
    "a longer fence": (
        f"{MANY}````\n```\nThought: x\n````\n",
        "Thought: a",
        [("python", "````\n```\nThought: x\n````")],
    ),
    "a label on the closing fence": (
        "Action: python\nAction Input:\n```python\nx = 1\n\n\nif x:\n    y\n```Observation: made up",
        "",
        [("python", "```python\nx = 1\n\n\nif x:\n    y\n```")],
    ),
    "a label after JSON": ('Action: double\nAction Input: {"x": 1} Observation: 2', "", [("double", '{"x": 1}')]),
    "a label after JSON with a brace in it": (
        """Action: double\nAction Input: {"x": "f'{name} Action: {act}'"} Observation: 2""",
        "",
        [("double", """{"x": "f'{name} Action: {act}'"}""")],
    ),
    "a label after JSON with errors": (
        "Action: double\nAction Input: {'x': 1} Thought: b",
        "",
        [("double", "{'x': 1}")],
    ),
    "code with a star after bold labels": (
        "**Action:** python\n**Action Input:** *a, b = [1, 2]\na",
        "",
        [("python", "*a, b = [1, 2]\na")],
    ),
    "bold labels with their stars apart": (
        "**Action: **python\n**Action Input: **print(1)\na",
        "",
        [("python", "print(1)\na")],
    ),
    "labels inside a line of code": (
        f"{MANY}print('Observation: 3')",
        "Thought: a",
        [("python", "print('Observation: 3')")],
    ),
    "a namespace before the name": ("Action: functions.python\nAction Input: 1", "", [("python", "1")]),
    "no input": ("Thought: a\nAction: double", "Thought: a", [("double", "")]),
    "no input and a result": ("Action: double\nAction Input:\nObservation: 3", "", [("double", "")]),
    "a tool that is none": ("Action: nosuch\nAction Input: 1", "", [("nosuch", "1")]),
    "half a stop word": (f"{MANY}1\nObserv", "Thought: a", [("python", "1")]),
    "an answer": ("Thought: a\nFinal Answer: 42\nAction: python", "Thought: a\nFinal Answer: 42\nAction: python", []),
    "an answer without line end": ("I know.Final Answer: 42", "Thought: I know.Final Answer: 42", []),
    "an answer at once": ("Final Answer: 42", "Final Answer: 42", []),
    "plain text": ("All is well.\n\nBye.", "Thought: All is well.\n\nBye.", []),
    "no action": ("Thought: a\nAction: None\nFinal Answer: 5", "Thought: a\nAction: None\nFinal Answer: 5", []),
    "the word in prose": (
        "A call to Action: now or never\nand so on",
        "Thought: A call to Action: now or never\nand so on",
        [],
    ),
    "an observation at once": ("Thought: a\nObservation: b", "Thought: a", []),
}


def parse(text: str, piece: int) -> list[Delta]:
    parser = ReActParser(TOOLS)
    found: list[Delta] = []
    for start in range(0, len(text), piece):
        if not parser.is_over:
            found += parser.feed(text[start : start + piece])
    return found + list(parser.finish())


def said(found: list[Delta]) -> str:
    return "".join(delta.text for delta in found if isinstance(delta, TextDelta))


def calls(found: list[Delta]) -> list[tuple[str, str]]:
    return [(delta.name, delta.arguments) for delta in found if isinstance(delta, CallComplete)]


def written(found: list[Delta]) -> list[str]:
    """The arguments of each call, as they came in pieces."""
    indices = [delta.index for delta in found if isinstance(delta, CallComplete)]
    arguments = [delta for delta in found if isinstance(delta, ArgumentsDelta)]
    return ["".join(delta.text for delta in arguments if delta.index == index) for index in indices]


@pytest.mark.parametrize("case", CASES)
def test_replies_are_read_the_same_however_they_are_cut(case: str) -> None:
    text, expected_text, expected_calls = CASES[case]
    found = {piece: parse(text, piece) for piece in PIECES}
    assert {piece: said(deltas) for piece, deltas in found.items()} == dict.fromkeys(PIECES, expected_text)
    assert {piece: calls(deltas) for piece, deltas in found.items()} == dict.fromkeys(PIECES, expected_calls)
    if not case.startswith("a label after JSON"):  # where only the end can tell
        arguments = [arguments for _, arguments in expected_calls]
        assert {piece: written(deltas) for piece, deltas in found.items()} == dict.fromkeys(PIECES, arguments)


def test_code_comes_line_by_line() -> None:
    parser = ReActParser(TOOLS)
    list(parser.feed("Action: python\nAction Input: "))
    assert [delta.text for delta in parser.feed("x = 1\ny = 2\nz") if isinstance(delta, ArgumentsDelta)] == [
        "x = 1",
        "\ny = 2",
        "\nz",
    ]


def test_long_text_is_read_whole() -> None:
    line = "a word and another, **bold** and so on\n"
    found = parse(f"Thought: a\nAction: python\nAction Input: {line * 5_000}", 50)
    assert sum(len(delta.text) for delta in found if isinstance(delta, ArgumentsDelta)) == len(line) * 5_000 - 1
