"""Bodies, messages, names, notebooks and a script's lines as clients and code give them to the wires."""

from __future__ import annotations

import contextlib

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from agent_tools.bodies.envelopes import Envelopes, envelope
from agent_tools.bodies.json_body import BodyRefused, parsed
from agent_tools.wires import e2b, librechat, sandboxfusion, terminal
from agent_tools.wires.e2b.processes import InputMessage
from agent_tools.wires.e2b.state import E2BState
from agent_tools.wires.librechat import _inside
from agent_tools.wires.librechat.state import MAX_PRINTED, ScriptLines, identifier
from agent_tools.wires.paths import Home
from agent_tools.wires.routing import checked
from agent_tools.wires.terminal.notebooks import NotebookFile, source_of
from agent_tools.wires.terminal.shells import FirstMessage, SizeMessage
from tests.fuzz.oracle import Bound, Parts, Target

MODELS = [
    model
    for routes in (terminal.ROUTES, terminal.POLICIES, librechat.ROUTES, sandboxfusion.ROUTES, e2b.ROUTES)
    for each in routes.operations
    for model in (each.query, each.body)
] + [E2BState, InputMessage]


def read_bodies(parts: Parts) -> None:
    """Read them as each of these.

    No name leads out of the folder, a call has the three fields that it needs, and the size of a terminal is one that
    can be.
    """
    lines = ScriptLines()
    with contextlib.suppress(BodyRefused, ValueError):
        for part in parts:
            lines.feed(part)
    assert len(lines.printed.getvalue()) <= MAX_PRINTED
    assert all(set(each) == {"id", "name", "input"} for each in lines.calls)
    envelopes = Envelopes()
    with contextlib.suppress(HTTPException):
        read = [message for part in parts for message in envelopes.feed(part)]
        assert all(parsed(Envelopes().feed(envelope(parsed(each)))[0]) == parsed(each) for each in read)
    text = b"".join(parts).decode("utf-8", "replace")
    home = Home("/home/user", aliases=("/workspace", "~"))
    for cwd in ("", "/", "/tmp/x"):
        with contextlib.suppress(HTTPException):
            path = home.resolved(text, cwd)
            assert path.startswith("/")
            assert ".." not in path.split("/")
            assert "\0" not in home.in_sandbox(path)
            relative = home.inside(path)
            assert relative is None or not relative.startswith("/")
    name = _inside(text)
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    assert "\0" not in name
    assert identifier(text).isidentifier() or not identifier(text)
    with contextlib.suppress(ValidationError):
        size = SizeMessage.model_validate_json(text)
        assert all(0 < each < 1_000 for each in (size.rows, size.cols))
    with contextlib.suppress(ValidationError):
        FirstMessage.model_validate_json(text)
    with contextlib.suppress(ValidationError):
        for cell in NotebookFile.model_validate_json(b"".join(parts)).cells:
            source_of(cell)
    with contextlib.suppress(BodyRefused):
        given = parsed(b"".join(parts))
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
        *(
            b'"path": "',
            b'"replacements": [{"target": "',
            b'"command": "',
            b'"env": {',
            b'"cell_index": -1',
            b'"paths": [',
        ),
        *(b"/mnt/data/", b"/workspace/", b"../", b"//", b"\0", b'{"code": "', b'"language": "python"', b'"files": {'),
        *(b"\0\0\0\0\2{}", b"\2\0\0\0\0", b"~/", b"/home/user/", b'"process": {"cmd": "', b'"pty": {"size": {'),
        *(b'{"type": "auth", "token": "', b'{"type": "resize", "rows": ', b', "cols": 1e999}', b'"chat_id": '),
        *(b'{"cells": [', b'{"source": ['),
        *(b'"cells": [', b'"run_timeout": 1e999', b'"tool_results": [{"call_id": ', b'"lang": "py"', b"null"),
    ),
)
