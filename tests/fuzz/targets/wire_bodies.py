"""Bodies, names and a script's lines as clients and code give them to the wires of other sandboxes."""

from __future__ import annotations

import contextlib
import json

from starlette.exceptions import HTTPException

from agent_tools.wires import librechat, sandboxfusion
from agent_tools.wires.http import checked
from agent_tools.wires.librechat import _inside
from agent_tools.wires.librechat.calls import MAX_PRINTED, Lines, identifier
from tests.fuzz.oracle import Bound, Parts, Target

MODELS = [
    model
    for routes in (librechat.ROUTES, sandboxfusion.ROUTES)
    for each in routes.operations
    for model in (each.query, each.body)
]


def read_bodies(parts: Parts) -> None:
    """Read them as each of these; no name leads out of the folder, and a call has the three fields that it needs."""
    lines = Lines()
    for part in parts:
        lines.feed(part)
    assert len(lines.printed) <= MAX_PRINTED
    assert all(set(each) == {"id", "name", "input"} for each in lines.calls)
    text = b"".join(parts).decode("utf-8", "replace")
    name = _inside(text)
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    assert "\0" not in name
    assert identifier(text).isidentifier() or not identifier(text)
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(text)
        for model in MODELS:
            with contextlib.suppress(HTTPException):
                checked(model, given, "body")


TARGET = Target(
    read_bodies,
    lambda data: [data],
    allowed=(),
    bound=Bound(seconds_per_byte=40e-6, bytes_per_byte=256),
    words=(
        *(b'{"out": "', b'{"calls": [{"id": "', b'", "name": "', b'", "input": {', b"}}]}\n", b"\n", b"[" * 99),
        *(b"/mnt/data/", b"/workspace/", b"../", b"//", b"\0", b'{"code": "', b'"language": "python"', b'"files": {'),
        *(b'"cells": [', b'"run_timeout": 1e999', b'"tool_results": [{"call_id": ', b'"lang": "py"', b"null"),
    ),
)
