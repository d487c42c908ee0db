"""The code in a call's arguments, while they come in pieces."""

from __future__ import annotations

from agent_tools.agents.turn.code_stream import CodeStream
from agent_tools.code_reader import read_params
from agent_tools.errors import InvalidParams
from agent_tools.limits import Limits
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts

LIMITS = Limits()


def stream_code(parts: Parts) -> None:
    """Follow the code; as long as the pieces are a beginning of it, they and the rest are all of it."""
    stream = CodeStream()
    arguments = list(texts(parts))
    shown = "".join([stream.feed(text) for text in arguments])
    try:
        code = read_params("".join(arguments), LIMITS).code
    except InvalidParams:
        return
    assert not code.startswith(shown) or shown + stream.finish(code) == code


TARGET = Target(
    stream_code,
    lambda data: pieces_of(data, 64 * 1024),
    words=(
        b'{"code": "',
        b'{"a": [',
        b"\\u",
        b"\\ud83d\\ude00",
        b"\\n",
        b'"}',
        b"```python\n",
        b"'",
        unfold.repeat(1, 12),
    ),
)
