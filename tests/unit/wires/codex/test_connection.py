"""A connection's messages: what is answered at once, in which thread, and what a lost connection leaves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.limits import MIB
from agent_tools.wires.codex.connection import MAX_FETCHES, WAITING_BYTES, CodexWire, Connection, SessionContainer
from agent_tools.wires.codex.processes import KEPT, Log
from agent_tools.wires.paths import Home
from tests.gateway.in_loop import LargeJsonHere, until_true
from tests.wires.exec_client import encoded

WAIT = 30.0


class OneSandbox:
    """A sandbox without a network, in place of containers; its uses wait for `may_go`."""

    options = SimpleNamespace(isolation=SimpleNamespace(policy=None))

    def __init__(self) -> None:
        self.may_go, self.uses, self.most = threading.Event(), 0, 0
        self.data = bytes(MIB)

    @contextmanager
    def use(self, id_: str, timeout: float = 0.0) -> Iterator[tuple[Any, str]]:
        self.uses += 1
        self.most = max(self.most, self.uses)
        self.may_go.wait(WAIT)
        try:
            yield self, ""
        finally:
            self.uses -= 1

    def stat(self, path: str, *, follow: bool = True) -> Any:
        return SimpleNamespace(kind="folder" if path == "." else "file", is_dir=path == ".")

    def read_file(self, path: str, **_: Any) -> bytes:
        return self.data

    def write_file(self, path: str, data: bytes) -> None:
        self.data = data


class Client:
    """A client of a connection, with its answers."""

    def __init__(self, wire: CodexWire) -> None:
        self.answers: list[Any] = []
        box = SessionContainer(("ann", "box"), lambda: "id", Home("/workspace", ()))
        self.connection = Connection(wire, box, self._note)

    async def _note(self, message: str) -> None:
        self.answers.append(json.loads(message))

    async def send(self, name: str, id_: Any = 1, /, **params: Any) -> None:
        await self.connection.handle(json.dumps({"id": id_, "method": name, "params": params}).encode())

    async def begin(self, resumed: str | None = None) -> Any:
        await self.send("initialize", clientName="test", resumeSessionId=resumed)
        await self.connection.handle(b'{"method":"initialized"}')
        return self.answers.pop().get("result")


def run(scenario: Callable[[Client, OneSandbox], Any]) -> None:
    async def main() -> None:
        sandbox = OneSandbox()
        wire = CodexWire(sandbox)  # type: ignore[arg-type]
        client = Client(wire)
        try:
            await client.begin()
            await scenario(client, sandbox)
        finally:
            sandbox.may_go.set()
            await client.connection.close()
            await wire.close()

    asyncio.run(main())


class Typed:
    """A process that takes what is typed once it may."""

    id = "1"

    def __init__(self) -> None:
        self.has_begun, self.may_go, self.seen = threading.Event(), threading.Event(), list[bytes]()
        self.it = self.sync = self

    def write_stdin(self, data: bytes, timeout: float) -> None:
        self.has_begun.set()
        self.may_go.wait(WAIT)
        self.seen.append(data)


def typed_into(client: Client) -> Typed:
    session, process = client.connection._session, Typed()
    assert session
    run: Any = process
    session.processes._logs["1"] = Log(run, takes_input=True)
    return process


def test_messages_that_wait_are_few_bytes() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process = typed_into(client)
        for size in (WAITING_BYTES // 4, WAITING_BYTES // 8):
            await client.send("process/write", processId="1", chunk=encoded(bytes(size)), writeId=str(size))
        chunk = encoded(bytes(WAITING_BYTES // 2))
        sent = asyncio.ensure_future(client.send("process/write", processId="1", chunk=chunk, writeId="last"))
        await until_true(lambda: len(client.connection._waiting) == 3)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sent.done()
        process.may_go.set()
        await sent
        await until_true(lambda: len(client.answers) == 3)

    run(scenario)


def test_http_requests_of_a_key_run_few_at_a_time() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        for number in range(3 * MAX_FETCHES):
            await client.send("http/request", number, method="GET", url="http://example.org", requestId="1")
        await until_true(lambda: sandbox.uses >= MAX_FETCHES)
        for _ in range(100):
            await asyncio.sleep(0)
        sandbox.may_go.set()
        await until_true(lambda: len(client.answers) == 3 * MAX_FETCHES)
        assert sandbox.most == MAX_FETCHES

    run(scenario)


def test_answers_to_http_requests_that_a_client_does_not_read_are_few() -> None:
    async def scenario(client: Client, sandbox: Any) -> None:
        fetched, may_write, note = list[None](), asyncio.Event(), client.connection.write

        def run_command(*_: Any, **__: Any) -> Any:
            fetched.append(None)
            return SimpleNamespace(ok=True, stdout=b'{"status": 200, "headers": [], "bodyBase64": ""}')

        async def write(message: str) -> None:
            await may_write.wait()
            await note(message)

        sandbox.options = SimpleNamespace(isolation=SimpleNamespace(policy=()))
        sandbox.run_command = run_command
        sandbox.may_go.set()
        client.connection.write = write
        for number in range(3 * MAX_FETCHES):
            await client.send("http/request", number, method="GET", url="http://example.org", requestId="1")
        await until_true(lambda: len(fetched) >= MAX_FETCHES)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert len(fetched) == MAX_FETCHES
        may_write.set()
        await until_true(lambda: len(client.answers) == 3 * MAX_FETCHES)

    run(scenario)


def test_large_messages_are_read_and_written_in_threads() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        sandbox.may_go.set()
        process = typed_into(client)
        process.may_go.set()
        log = client.connection._session.processes._logs["1"]  # type: ignore[union-attr]
        for _ in range(KEPT // 12_000):
            log.add("stdout", bytes(12_000))
        path, asked = "file:///workspace/a", {"id": 1, "method": "fs/writeFile"}
        message = json.dumps({**asked, "params": {"path": path, "dataBase64": encoded(bytes(2 * MIB))}}).encode()
        texts = list[str]()

        async def note(text: str) -> None:
            texts.append(text)

        client.connection.write = note
        with LargeJsonHere() as here:
            await client.connection.handle(message)
            await client.send("fs/readFile", path=path)
            await client.send("process/read", processId="1")
            await until_true(lambda: len(texts) == 3)
        assert here.sizes == []
        assert sandbox.data == bytes(2 * MIB)
        assert json.loads(texts[1])["result"] == {"dataBase64": encoded(bytes(2 * MIB))}
        assert json.loads(texts[2])["result"]["chunks"][0]["chunk"] == encoded(bytes(12_000))

    run(scenario)


def test_a_session_can_be_resumed_while_a_request_of_its_lost_connection_ends() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        session, path = client.connection._session, "file:///workspace/a"
        assert session
        handling = asyncio.ensure_future(client.send("fs/readFile", path=path))
        await until_true(lambda: sandbox.uses)
        other = Client(client.connection.wire)
        assert await other.begin(session.id) is None  # it has a connection
        handling.cancel()
        closing = asyncio.ensure_future(client.connection.close())
        await asyncio.sleep(0)
        resumed = Client(client.connection.wire)
        assert (await resumed.begin(session.id))["sessionId"] == session.id
        assert not closing.done()
        sandbox.may_go.set()
        await closing
        await resumed.connection.close()

    run(scenario)


def test_a_client_that_leaves_while_a_request_is_handled_is_noticed() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        asked = {"id": 1, "method": "fs/readFile", "params": {"path": "file:///workspace/a"}}
        messages: list[bytes | None] = [None, json.dumps(asked).encode()]

        async def receive() -> bytes | None:
            await until_true(lambda: len(messages) == 2 or sandbox.uses)
            return messages.pop()

        session = client.connection._session
        assert session
        serving = asyncio.ensure_future(client.connection.serve(receive))
        await until_true(lambda: session.connection is None)
        sandbox.may_go.set()
        assert await serving

    run(scenario)


@pytest.mark.parametrize("is_broken", [False, True])
def test_all_requests_before_the_end_of_stdin_are_answered(is_broken: bool) -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        sandbox.may_go.set()
        params = {"path": "file:///workspace/a"}
        messages = [json.dumps({"id": id_, "method": "fs/readFile", "params": params}).encode() for id_ in range(4)]
        messages += [b'{"method":"unknown"}'] * is_broken

        async def receive() -> bytes | None:
            return messages.pop(0) if messages else None

        assert await client.connection.serve(receive, to_the_last=True) is not is_broken
        assert [each["id"] for each in client.answers] == [0, 1, 2, 3, *[-1] * is_broken]

    run(scenario)


def test_a_request_that_waits_at_the_end_of_stdin_is_answered() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process = typed_into(client)
        params = {"processId": "1", "chunk": encoded(b"1"), "writeId": "w"}
        messages = [json.dumps({"id": 7, "method": "process/write", "params": params}).encode()]

        async def receive() -> bytes | None:
            return messages.pop() if messages else None

        serving = asyncio.ensure_future(client.connection.serve(receive, to_the_last=True))
        await until_true(process.has_begun.is_set)
        for _turn in range(100):
            await asyncio.sleep(0)
        process.may_go.set()
        assert await serving
        assert [each["id"] for each in client.answers] == [7]

    run(scenario)


def test_what_was_typed_when_the_connection_was_lost_is_not_typed_again() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process, session = typed_into(client), client.connection._session
        assert session
        write = {"processId": "1", "chunk": encoded(b"once\n"), "writeId": "w"}
        await client.send("process/write", **write)
        await until_true(process.has_begun.is_set)
        closing = asyncio.ensure_future(client.connection.close())
        await asyncio.sleep(0)
        process.may_go.set()
        await closing
        resumed = Client(client.connection.wire)
        await resumed.begin(session.id)
        await resumed.send("process/write", **write)
        await until_true(lambda: resumed.answers)
        assert resumed.answers[0]["result"] == {"status": "accepted"}
        assert process.seen == [b"once\n"]
        await resumed.connection.close()

    run(scenario)


@pytest.mark.parametrize(("id_", "answered"), [("5", "5"), (5, 5), (True, -1), (2.0, -1), ("x" * 257, -1)])
def test_an_id_is_answered_as_it_came(id_: Any, answered: Any) -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        await client.send("environment/status", id_)
        assert [(type(each["id"]), each["id"]) for each in client.answers] == [(type(answered), answered)]

    run(scenario)
