"""Messages, paths, bodies and notebooks as clients and code give them to the terminal wire."""

from __future__ import annotations

import contextlib
import json

from starlette.exceptions import HTTPException

from agent_tools.wires.http import checked
from agent_tools.wires.terminal.callers import HOME, ROUTES, in_sandbox, inside, resolved
from agent_tools.wires.terminal.commands import read_first, read_size
from agent_tools.wires.terminal.python import read_notebook, source_of
from tests.fuzz.oracle import Bound, Parts, Target

MODELS = [model for each in ROUTES.operations for model in (each.query, each.body)]


def read_messages(parts: Parts) -> None:
    """Read them as each of these; no path leads out of HOME where it is taken for one inside."""
    data = parts[0]
    text = data.decode("utf-8", "replace")
    size = read_size(text)
    assert size is None or all(0 < each < 1_000 for each in size)
    read_first(text)
    for cwd in (HOME, "/", "/tmp/x"):
        with contextlib.suppress(HTTPException):
            path = resolved(text, cwd)
            assert path.startswith("/")
            assert ".." not in path.split("/")
            relative = inside(path)
            assert relative is None or not relative.startswith("/")
            in_sandbox(path)
    for cell in (read_notebook(data) or {}).get("cells", ()):
        source_of(cell)
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(text)
        for model in MODELS:
            with contextlib.suppress(HTTPException):
                checked(model, given, "body")


TARGET = Target(
    read_messages,
    lambda data: [data],
    allowed=(),
    bound=Bound(seconds_per_byte=40e-6, bytes_per_byte=256),
    words=(
        *(b'{"type": "auth", "token": "', b'{"type": "resize", "rows": ', b', "cols": 1e999}', b'"chat_id": '),
        *(
            b"/../",
            b"~/",
            b"/mnt/data",
            b"/home/user",
            b"\0",
            b"//",
            b'{"cells": [',
            b'{"source": [',
            b"null",
            b"[" * 99,
        ),
        *(
            b'"path": "',
            b'"replacements": [{"target": "',
            b'"command": "',
            b'"env": {',
            b'"cell_index": -1',
            b'"paths": [',
        ),
    ),
)
