"""Messages of Codex's exec-server protocol, as a client gives them: the envelope, parameters of all methods, paths."""

from __future__ import annotations

import contextlib

from starlette.exceptions import HTTPException

from agent_tools.bodies.json_body import BodyRefused, parsed
from agent_tools.wires.codex.connection import METHODS
from agent_tools.wires.codex.messages import RpcError, RpcRequest, path_of, read, uri_of
from agent_tools.wires.paths import Home
from tests.fuzz.oracle import Parts, Target


def read_messages(parts: Parts) -> None:
    """Read each part. A path stays one when it is written again, and no name of the folder leads out of it."""
    home = Home("/workspace", ("/home/ann/project",))
    for part in parts:
        with contextlib.suppress(ValueError, HTTPException):
            path = path_of(bytes(part).decode("utf-8", "replace"))
            assert path.startswith("/")
            assert path_of(uri_of(path)) == path
            inside = home.taken(path)
            assert "\0" not in inside
            assert inside.startswith("/") or ".." not in inside.split("/")
        with contextlib.suppress(BodyRefused, RpcError):
            asked = read(RpcRequest, parsed(bytes(part)), home)
            for model in METHODS.values():
                with contextlib.suppress(RpcError, HTTPException):
                    read(model, asked.params or {}, home)


TARGET = Target(
    read_messages,
    lambda data: [data],
    allowed=(),
    words=(
        *(b'{"id":1,"method":"process/start","params":{"processId":"1","argv":["', b'"cwd":"file:///', b'"tty":true'),
        *(b'"env":{"', b'"path":"file:///workspace/', b'"dataBase64":"', b'"options":{"maxDepth":', b'"chunk":"AAAA"'),
        *(
            b'"handleId":"',
            b'"offset":18446744073709551616',
            b'"len":',
            b'"waitMs":',
            b'"signal":"interrupt"',
            b"%2e%2e",
        ),
        *(b"file:///home/ann/project/../", b"file://localhost/", b"%00", b"%ff", b"[" * 99, b"null", b"}}", b'"id":"'),
    ),
)
