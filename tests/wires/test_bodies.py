"""Bodies at every route of every wire: read in one way, so that no body costs others time, or the gateway memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import tracemalloc
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import BaseModel, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from agent_tools.bodies.envelopes import MAX_MESSAGES, Envelopes, envelope, messages
from agent_tools.bodies.json_body import MAX_PARTS, BodyRefused, _counted
from agent_tools.limits import MIB
from agent_tools.mcp.asgi_app import MOUNT
from agent_tools.results.commands import CommandOutput, CommandResult, Cursor
from agent_tools.wires import e2b, librechat, sandboxfusion, terminal
from agent_tools.wires.e2b.processes import InputMessage
from agent_tools.wires.librechat.state import ScriptLines, StartedScript
from agent_tools.wires.open_resources import OpenResource, followed
from agent_tools.wires.routing import Operation, checked
from agent_tools.wires.terminal.files import MAX_TEXT, Replacement, line_at, replaced_all
from tests.gateway.asking import BOUNDARY, HEAD
from tests.gateway.conftest import NewGateway
from tests.wires.conftest import Served
from tests.wires.test_e2b import Client

ROUTES = [
    (path, operation)
    for path, routes in (
        ("/terminal", terminal.ROUTES),
        ("/terminal", terminal.POLICIES),
        ("/librechat", librechat.ROUTES),
        ("/sandboxfusion", sandboxfusion.ROUTES),
        ("/e2b", e2b.ROUTES),
    )
    for operation in routes.operations
]
WITH_BODY = [(path, operation) for path, operation in ROUTES if operation.body.model_fields]
SHARE = 4 * MIB


def test_every_route_refuses_what_would_cost_too_much(served: Served) -> None:
    bombs = {413: b'{"x":[' + b"[]," * MAX_PARTS + b"0]}", 422: b'{"x":' + b"[" * 200 + b"]" * 200 + b"}"}
    key = {"Authorization": f"Bearer {served.keys['first']}", "X-API-Key": served.keys["first"]}
    with httpx.Client(base_url=served.gateway.url, headers=key, timeout=60) as client:
        for path, operation in WITH_BODY:
            for status, bomb in bombs.items():
                answer = client.request(operation.method, path + operation.path, content=bomb)
                assert answer.status_code == status, (path, operation.path, answer.text[:200])
        for bomb in bombs.values():
            assert client.put("/terminal/api/v1/policies/x/lifecycle", content=bomb).status_code in (413, 422)
    assert served.rows == []


def test_every_route_of_the_gateway_does_so_too(new_gateway: NewGateway) -> None:
    """A route with an id looks for the object first; a route of files takes no JSON."""
    gateway = new_gateway({}, mounts=[MOUNT], endpoints=["embeddings"])
    bomb, found = b'{"x":[' + b"[]," * MAX_PARTS + b"0]}", dict[str, int]()
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        for route in gateway.app.routes:
            if isinstance(route, Route) and (route.methods or set()) & {"POST", "PUT", "PATCH"}:
                path = re.sub(r"{.*?}", "x", route.path)
                answer = client.post(path, content=bomb, headers={"Content-Type": "application/json"})
                found[route.path] = answer.status_code
    others = {path: status for path, status in found.items() if status != 413 and "{" not in path}
    passed_on = {"/v1/embeddings": 404}  # as it came, to an upstream that does not have it
    without_json = {"/v1/files": 400, "/v1/skills": 400}
    assert others == passed_on | without_json, found
    assert len(found) > 20


@pytest.mark.parametrize(("path", "operation"), WITH_BODY, ids=lambda each: getattr(each, "name", each))
def test_an_invalid_body_costs_no_more_than_a_multiple_of_its_bytes(path: str, operation: Operation) -> None:
    for name in operation.body.model_fields:
        for value in ([1] * 20_000, [{}] * 20_000, dict.fromkeys(map(str, range(20_000)), 1)):
            given = {name: value}
            tracemalloc.start()
            try:
                with contextlib.suppress(HTTPException):  # or the field takes anything
                    checked(operation.body, given, "body")
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 8 * len(json.dumps(given)), (path, operation.path, name)


def _unbounded(annotation: Any, bounded: bool = False) -> Iterator[Any]:
    """The lists and objects of a type whose length no `at_most` bounds before their items are checked."""
    if hasattr(annotation, "__metadata__"):
        bounds = [each for each in annotation.__metadata__ if isinstance(each, BeforeValidator)]
        is_bounded = any(getattr(each.func, "func", None) is _counted for each in bounds)
        yield from _unbounded(annotation.__origin__, is_bounded or bounded)
    elif get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _unbounded(each, bounded)
    elif get_origin(annotation) in (list, dict):
        inner = [each for each in get_args(annotation)[-1:] if each is not Any]
        if inner and not bounded:
            yield annotation
        for each in inner:
            yield from _unbounded(each)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for each in get_type_hints(annotation, include_extras=True).values():
            yield from _unbounded(each)


def test_every_list_of_a_body_has_its_bound_on_itself() -> None:
    fields = {
        (path, operation.path, name): hint
        for path, operation in ROUTES
        for name, hint in get_type_hints(operation.handler, include_extras=True).items()
        if name in {**operation.body.model_fields, **operation.query.model_fields}
    }
    fields |= {("/e2b", "StreamInput", ""): InputMessage}
    assert {field: found for field, hint in fields.items() if (found := list(_unbounded(hint)))} == {}
    assert list(_unbounded(Union[list[str], None])) == [list[str]]


async def _turns(work: Any) -> int:
    """The turns that another task of the loop gets while this one works."""
    turns, working = 0, asyncio.ensure_future(work)
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    await working
    return turns


def test_others_are_served_between_two_messages_of_a_stream() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": envelope({}) * 1_000, "more_body": False}

    async def read() -> None:
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        assert [each async for each in messages(request)] == [b"{}"] * 1_000

    assert asyncio.run(_turns(read())) >= 1_000


def test_a_stream_has_a_bounded_number_of_messages() -> None:
    envelopes = Envelopes()
    assert len(envelopes.feed(envelope({}) * MAX_MESSAGES)) == MAX_MESSAGES
    with pytest.raises(HTTPException) as refusal:
        envelopes.feed(envelope({}))
    assert refusal.value.status_code == 413


class Printing:
    """A process that has printed more whenever it is asked."""

    def __init__(self, times: int, data: bytes = b"x") -> None:
        self.left = times
        self.sync = self
        self.data = data

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def pace(self, _: int) -> None: ...

    def read(self, cursor: Cursor) -> CommandOutput:
        self.left -= 1
        return CommandOutput(self.data if self.left >= 0 else b"", b"", cursor)

    def kill(self) -> None: ...

    def result(self) -> CommandResult:
        return CommandResult(0)


def test_others_are_served_beside_a_command_that_always_prints() -> None:
    async def read() -> None:
        process: Any = Printing(1_000)
        assert len([each async for each in followed(process, Cursor())]) == 1_000

    assert asyncio.run(_turns(read())) >= 1_000


def test_the_time_limit_of_a_script_holds_while_it_writes_lines_without_end() -> None:
    process: Any = Printing(1_000, b"{}\n" * 1_000)
    thing = OpenResource(("o", "c"), "c", process, lambda: None)
    script = StartedScript(thing, "s", 0.0, list)
    assert asyncio.run(script.go_on())["error"] == "Time limit exceeded"
    assert process.left > 900


def test_lines_of_a_script_that_would_cost_too_much_break_it() -> None:
    for line in (
        b'{"x":[' + b"[]," * MAX_PARTS + b"0]}\n",
        b"[" * 1_000 + b"\n",
        b'{"calls":[' + b"1," * 1_000 + b"1]}\n",
    ):
        with pytest.raises((BodyRefused, ValueError)):
            ScriptLines().feed(line)


def test_replacements_cannot_grow_a_text_beyond_what_a_file_may_have() -> None:
    double = Replacement(target="a", replacement="aa", allow_multiple=True)
    tracemalloc.start()
    try:
        for each, times in (
            (double, 100),
            (Replacement(target="a", replacement="b" * MAX_TEXT, allow_multiple=True), 1),
        ):
            with pytest.raises(HTTPException) as refusal:
                replaced_all("a" * 10, [each] * times)
            assert (refusal.value.status_code, "run_python" in refusal.value.detail) == (413, True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_TEXT
    assert len(replaced_all("a" * 10, [double] * 20)) == 10 * 2**20


def test_a_line_is_found_without_a_list_of_all_lines() -> None:
    for text in ("", "\n", "a", "a\nb", "a\n\nb\n", "\n" * 200_000 + "end", ("x" * 70_000 + "\n") * 3):
        lines = text.splitlines(keepends=True)
        for number in {1, 2, 3, 4, 5, len(lines) // 2 + 1, len(lines), len(lines) + 1, len(lines) + 2, 2**53}:
            assert line_at(text, number) == len("".join(lines[: number - 1])), (text[:10], number)
    tracemalloc.start()
    try:
        line_at("a\n" * (4 * MIB), 4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * MIB  # with the text itself


def test_uploads_keep_nothing_before_the_disk_was_asked(serve: Any) -> None:
    served = serve(min_disk_free=2**60)
    where = urlsplit(served.gateway.url)
    for path in ("/terminal/files/upload", "/librechat/upload", "/librechat/upload/batch"):
        head = {**BOUNDARY, "Host": where.netloc, "Authorization": f"Bearer {served.keys['plain']}"}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        with socket.create_connection((where.hostname, where.port), timeout=30) as client:
            client.sendall("\r\n".join((*lines, f"Content-Length: {64 * MIB}", "", "")).encode() + HEAD)
            answer = client.recv(4096)  # though the rest of the body has not come
        assert answer.startswith(b"HTTP/1.1 507 "), (path, answer)


def test_uploads_count_against_their_owners_share(serve: Any) -> None:
    upload_beyond_the_share(serve(max_containers_bytes=SHARE))


def upload_beyond_the_share(served: Served) -> None:
    """Upload a small file, and one beyond `SHARE`, in each way."""
    sandbox = Client(served).create()
    large, small = bytes(6 * MIB), b"small"
    for content, status in ((large, 507), (small, 200)):
        raw = {"Content-Type": "application/octet-stream"}
        answers = [
            sandbox.ask("POST", "/files", params={"path": "a"}, content=content, headers={**sandbox.headers, **raw}),
            sandbox.ask("POST", "/files", params={"path": "b"}, files={"file": ("b", content)}),
        ]
        client, paths = served.client(key="plain"), ("/terminal/files/upload", "/librechat/upload")
        answers += [client.post(f"{served.gateway.url}{path}", files={"file": ("x.bin", content)}) for path in paths]
        assert {each.status_code for each in answers} == {status}, [each.text for each in answers]
    assert list((served.gateway.services.config.data_dir / "arriving").iterdir()) == []
