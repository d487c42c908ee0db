"""The commands in a call's arguments, as they come."""

from __future__ import annotations

import pytest

from agent_tools.gateway.tools.shell_call_stream import CommandPiece, CommandStream


def followed(text: str, size: int) -> dict[int, str]:
    stream = CommandStream()
    found: dict[int, str] = {}
    for start in range(0, len(text), size):
        for piece in stream.feed(text[start : start + size]):
            found[piece.index] = found.get(piece.index, "") + piece.text
    return found


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ('{"commands": ["ls", "a\\nb", "\\ud83d\\ude00"]}', ["ls", "a\nb", "\U0001f600"]),
        (' {"timeout_ms":5 , "max_output_length": 10,"commands":["a" , "b"],"x":["c"]}', ["a", "b"]),
        ('{"commands": ["a"], "note": ["b"]}', ["a"]),
        ('{"commands": "ls"}', []),
        ('{"command": "ls"}', []),
        ('["ls"]', []),
        ('{"other": 1, "commands": ["a"]}', []),
        ("ls -l", []),
        ('{"commands": ["a", 3, "b"]}', ["a"]),
    ],
)
def test_commands_are_followed(text: str, commands: list[str], size: int) -> None:
    assert list(followed(text, size).values()) == commands


def test_a_command_is_given_before_it_is_whole() -> None:
    assert list(CommandStream().feed('{"commands": ["echo \\u00e')) == [CommandPiece(0, "echo ")]


def test_no_more_commands_are_followed_than_may_be_called() -> None:
    assert len(followed('{"commands": [' + ",".join(['"a"'] * 99) + "]}", 7)) == 16


def test_an_endless_lead_is_given_up() -> None:
    assert followed('{"timeout_ms":' + " " * 5000 + '5, "commands": ["a"]}', 100) == {}
