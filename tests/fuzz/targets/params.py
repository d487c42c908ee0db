"""What a model gives as arguments of a call."""

from __future__ import annotations

import contextlib

from agent_tools.errors import InvalidParams
from agent_tools.limits import Limits
from agent_tools.tools.params import code_of, load_json
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target

LIMITS = Limits()


def read_params(parts: Parts) -> None:
    """Read them as code, and as JSON of any other tool."""
    text = parts[0].decode("utf-8", "surrogatepass" if b"\xed" in parts[0] else "replace")
    with contextlib.suppress(ValueError):
        load_json(text)
    code = code_of(text, LIMITS)
    assert len(code) <= len(text)
    code.encode()


TARGET = Target(
    read_params,
    lambda data: [unfold.text(data)],
    allowed=(InvalidParams, UnicodeDecodeError),
    bound=Bound(seconds_per_byte=20e-6),
    words=(
        *(b'{"code": "', b"{code: '", b"```python\n", b"```\n", b"\n```", b"'''", b'"""', b"//", b"/*", b"*/", b"0x"),
        *(b"\\u0061", b"Infinity", b"[[", b",", b"\xef\xbb\xbf", unfold.repeat(1, 12), unfold.repeat(2, 12)),
    ),
)
