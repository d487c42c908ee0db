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
from agent_tools.wires.codex.connection import (
    MAX_FETCHES,
    MESSAGE_BYTES,
    METHODS,
    WAITING_BYTES,
    CodexSession,
    CodexWire,
    Connection,
    SessionContainer,
)
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

    def __init__(self, wire: CodexWire, *, to_the_last: bool = False) -> None:
        self.answers: list[Any] = []
        box = SessionContainer(("ann", "box"), lambda: "id", Home("/workspace", ()))
        self.connection = Connection(wire, box, self._note)
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.serving = asyncio.ensure_future(self.connection.serve(self._messages.get, to_the_last=to_the_last))

    async def _note(self, message: str) -> None:
        self.answers.append(json.loads(message))

    def send(self, name: str, id_: Any = 1, /, **params: Any) -> None:
        self._messages.put_nowait(json.dumps({"id": id_, "method": name, "params": params}).encode())

    def notify(self, method: str) -> None:
        self._messages.put_nowait(json.dumps({"method": method}).encode())

    def leave(self) -> None:
        self._messages.put_nowait(None)

    async def answered(self, number: int) -> list[Any]:
        """Wait for a number of answers, and return the ids of all."""
        await until_true(lambda: len(self.answers) >= number)
        return [each["id"] for each in self.answers]

    async def begin(self, resumed: str | None = None) -> Any:
        self.send("initialize", clientName="test", resumeSessionId=resumed)
        self.notify("initialized")
        await self.answered(1)
        return self.answers.pop().get("result")

    @property
    def session(self) -> CodexSession:
        found = self.connection._session
        assert found
        return found


def run(scenario: Callable[[Client, OneSandbox], Any], *, to_the_last: bool = False) -> None:
    async def main() -> None:
        sandbox = OneSandbox()
        wire = CodexWire(sandbox)  # type: ignore[arg-type]
        client = Client(wire, to_the_last=to_the_last)
        try:
            await client.begin()
            await scenario(client, sandbox)
        finally:
            sandbox.may_go.set()
            client.leave()
            await client.serving
            await wire.close()

    asyncio.run(main())


async def nothing_more_happens() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


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
    process: Any = Typed()
    client.session.processes._logs["1"] = Log(process, takes_input=True)
    typed: Typed = process
    return typed


def test_messages_that_wait_are_few_bytes() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process = typed_into(client)
        for size in (WAITING_BYTES // 4, WAITING_BYTES // 8):
            client.send("process/write", size, processId="1", chunk=encoded(bytes(size)), writeId=str(size))
        client.send("environment/status", 1)
        assert await client.answered(1) == [1]  # beside what waits
        client.send("process/write", 2, processId="1", chunk=encoded(bytes(WAITING_BYTES // 2)), writeId="last")
        client.send("environment/status", 3)
        await until_true(lambda: client.connection._waiting_bytes > WAITING_BYTES)
        await nothing_more_happens()
        assert client._messages.qsize() == 1
        process.may_go.set()
        await client.answered(5)

    run(scenario)


def test_messages_that_wait_are_not_many() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process = typed_into(client)
        most = WAITING_BYTES // MESSAGE_BYTES
        for number in range(2 * most):
            client.send("process/write", number, processId="1", chunk="", writeId=str(number))
        await until_true(lambda: client._messages.qsize() < 2 * most - 200)
        await nothing_more_happens()
        assert client._messages.qsize() >= most
        process.may_go.set()
        await client.answered(2 * most)

    run(scenario)


def test_http_requests_of_a_key_run_few_at_a_time() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        for number in range(3 * MAX_FETCHES):
            client.send("http/request", number, method="GET", url="http://example.org", requestId="1")
        await until_true(lambda: sandbox.uses >= MAX_FETCHES)
        await nothing_more_happens()
        sandbox.may_go.set()
        await client.answered(3 * MAX_FETCHES)
        assert sandbox.most == MAX_FETCHES
        await until_true(lambda: not client.connection.wire.fetches)  # an owner without requests is forgotten

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
            client.send("http/request", number, method="GET", url="http://example.org", requestId="1")
        await until_true(lambda: len(fetched) >= MAX_FETCHES)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert len(fetched) == MAX_FETCHES
        may_write.set()
        await client.answered(3 * MAX_FETCHES)

    run(scenario)


def test_large_messages_are_read_and_written_in_threads() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        sandbox.may_go.set()
        typed_into(client)
        log = client.session.processes._logs["1"]
        for _ in range(KEPT // 12_000):
            log.add("stdout", bytes(12_000))
        path = "file:///workspace/a"
        texts = list[str]()

        async def note(text: str) -> None:
            texts.append(text)

        client.connection.write = note
        client.send("fs/writeFile", path=path, dataBase64=encoded(bytes(2 * MIB)))
        with LargeJsonHere() as here:
            client.send("fs/readFile", path=path)
            client.send("process/read", processId="1")
            await until_true(lambda: len(texts) == 3)
        assert here.sizes == []
        assert sandbox.data == bytes(2 * MIB)
        assert json.loads(texts[1])["result"] == {"dataBase64": encoded(bytes(2 * MIB))}
        assert json.loads(texts[2])["result"]["chunks"][0]["chunk"] == encoded(bytes(12_000))

    run(scenario)


def test_requests_are_answered_in_their_order() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        client.send("fs/readFile", 1, path="file:///workspace/a")
        client.send("environment/status", 2)
        client.send("no/such", 3)
        await until_true(lambda: sandbox.uses)
        await nothing_more_happens()
        assert client.answers == []
        sandbox.may_go.set()
        assert await client.answered(3) == [1, 2, 3]

    run(scenario)


def test_a_session_can_be_resumed_while_a_request_of_its_lost_connection_ends() -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        session = client.session
        client.send("fs/readFile", path="file:///workspace/a")
        await until_true(lambda: sandbox.uses)
        other = Client(client.connection.wire)
        assert await other.begin(session.id) is None  # it has a connection
        client.leave()
        await until_true(lambda: session.connection is None)
        resumed = Client(client.connection.wire)
        assert (await resumed.begin(session.id))["sessionId"] == session.id
        assert not client.serving.done()
        sandbox.may_go.set()
        assert await client.serving
        for each in (other, resumed):
            each.leave()
            await each.serving

    run(scenario)


@pytest.mark.parametrize("is_broken", [False, True])
def test_all_requests_before_the_end_of_stdin_are_answered(is_broken: bool) -> None:
    async def scenario(client: Client, sandbox: OneSandbox) -> None:
        sandbox.may_go.set()
        for id_ in range(4):
            client.send("fs/readFile", id_, path="file:///workspace/a")
        if is_broken:
            client.notify("unknown")
        else:
            client.leave()
        assert await client.serving is not is_broken
        assert [each["id"] for each in client.answers] == [0, 1, 2, 3, *[-1] * is_broken]

    run(scenario, to_the_last=True)


def test_a_request_that_waits_at_the_end_of_stdin_is_answered() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process = typed_into(client)
        client.send("process/write", 7, processId="1", chunk=encoded(b"1"), writeId="w")
        client.leave()
        await until_true(process.has_begun.is_set)
        await nothing_more_happens()
        assert client.session.connection is client.connection
        process.may_go.set()
        assert await client.serving
        assert [each["id"] for each in client.answers] == [7]

    run(scenario, to_the_last=True)


def test_what_was_typed_when_the_connection_was_lost_is_not_typed_again() -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        process, session = typed_into(client), client.session
        write = {"processId": "1", "chunk": encoded(b"once\n"), "writeId": "w"}
        client.send("process/write", **write)
        await until_true(process.has_begun.is_set)
        client.leave()
        await until_true(lambda: session.connection is None)
        process.may_go.set()
        await client.serving
        resumed = Client(client.connection.wire)
        await resumed.begin(session.id)
        resumed.send("process/write", **write)
        await resumed.answered(1)
        assert resumed.answers[0]["result"] == {"status": "accepted"}
        assert process.seen == [b"once\n"]
        resumed.leave()
        await resumed.serving

    run(scenario)


@pytest.mark.parametrize(("id_", "answered"), [("5", "5"), (5, 5), (True, -1), (2.0, -1), ("x" * 257, -1)])
def test_an_id_is_answered_as_it_came(id_: Any, answered: Any) -> None:
    async def scenario(client: Client, _: OneSandbox) -> None:
        client.send("environment/status", id_)
        await client.answered(1)
        assert [(type(each["id"]), each["id"]) for each in client.answers] == [(type(answered), answered)]

    run(scenario)


def test_no_method_is_there_but_those_of_the_protocol() -> None:
    files = "canonicalize close copy createDirectory getMetadata open readBlock readDirectory readFile remove walk"
    assert set(METHODS) == {
        *("initialize", "environment/info", "environment/status", "http/request"),
        *(f"fs/{name}" for name in (*files.split(), "writeBlock", "writeFile")),
        *(f"process/{name}" for name in ("start", "read", "write", "signal", "terminate")),
    }
