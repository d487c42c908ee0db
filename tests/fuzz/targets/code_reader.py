"""What a model gives as arguments of a call, or as code."""

from __future__ import annotations

import contextlib

from agent_tools.code_fences import python_blocks
from agent_tools.code_reader import read_code, read_params
from agent_tools.errors import InvalidParams
from agent_tools.json_reader import load_json
from agent_tools.limits import Limits
from agent_tools.python_scanner import is_sound
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target

LIMITS = Limits()


def read_text(parts: Parts) -> None:
    """Read it as code, as arguments, as JSON of any other tool, and as an answer with code in it.

    What is in no fence, and no line with `\\n` as characters, is the code as it is.
    """
    text = parts[0].decode("utf-8", "surrogatepass" if b"\xed" in parts[0] else "replace")
    with contextlib.suppress(ValueError):
        load_json(text)
    assert sum(map(len, python_blocks(text))) <= len(text)
    is_sound(text)
    with contextlib.suppress(InvalidParams):
        reading = read_code(text, LIMITS)
        assert len(reading.code) <= len(text)
        assert reading.code == text.removeprefix("\ufeff") or "```" in text or "\\n" in text
    reading = read_params(text, LIMITS)
    assert len(reading.code) <= len(text)
    reading.code.encode()
    "".join(reading.notes).encode()


TARGET = Target(
    read_text,
    lambda data: [unfold.text(data)],
    allowed=(InvalidParams, UnicodeDecodeError),
    bound=Bound(seconds_per_byte=20e-6),
    words=(
        *(b'{"code": "', b"{code: '", b"```python\n", b"```\n", b"\n```", b"'''", b'"""', b"//", b"/*", b"*/", b"0x"),
        *(b"\\u0061", b"Infinity", b"[[", b",", b"\xef\xbb\xbf", b"\\d", b"\\'", b"\\n", b'{}{"code": "', b"<|call|>"),
        *(
            b"f'{",
            b"}'",
            b"f'''{",
            b":",
            b"#",
            b"%%bash\n",
            b"!",
            b"= !",
            b"```bash\n",
            b"````",
            b"\\\n",
            b'{"code": "```',
        ),
        *(unfold.repeat(1, 12), unfold.repeat(2, 12), unfold.repeat(6, 12)),
    ),
)
