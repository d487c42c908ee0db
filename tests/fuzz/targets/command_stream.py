"""The commands in a shell call's arguments, while they come in pieces."""

from __future__ import annotations

from collections import defaultdict

from agent_tools.errors import InvalidParams
from agent_tools.gateway.tools.shell_call import MAX_COMMANDS, read_shell_call
from agent_tools.gateway.tools.shell_call_stream import CommandStream
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts


def stream_commands(parts: Parts) -> None:
    """Follow the commands: their places go up, and plain JSON's pieces are beginnings; an empty command has none."""
    stream, arguments = CommandStream(), list(texts(parts))
    shown: dict[int, str] = defaultdict(str)
    last = 0
    for text in arguments:
        for piece in stream.feed(text):
            assert last <= piece.index < MAX_COMMANDS
            last = piece.index
            shown[last] += piece.text
    try:
        call = read_shell_call("".join(arguments))
    except InvalidParams:
        return
    if "".join(arguments).count('"commands"') == 1:
        assert all(call.commands[index].startswith(text) for index, text in shown.items() if index < len(call.commands))
        assert not any(call.commands[index] for index in range(min(last, len(call.commands))) if index not in shown)


TARGET = Target(
    stream_commands,
    lambda data: pieces_of(data, 64 * 1024),
    words=(
        b'{"commands": ["',
        b'{"timeout_ms": 5, "commands": ["',
        b'", "',
        b'"]}',
        b'"], "timeout_ms": 1}',
        b"\\u",
        b"\\ud83d\\ude00",
        b"\\n",
        b'\\"',
        unfold.repeat(1, 12),
    ),
)
