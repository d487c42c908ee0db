"""Codex's exec-server protocol over WebSockets: processes, files, sessions, keys, and what clients must not do."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.wires.codex.connection import MAX_SESSIONS
from agent_tools.wires.codex.processes import KEPT, KEPT_ENDED
from tests.gateway.asking import until
from tests.wires.conftest import Served
from tests.wires.exec_client import ExecClient, encoded


class Client(ExecClient):
    """A client with a socket."""

    def __init__(self, socket: Connection) -> None:
        super().__init__(socket.send, lambda: socket.recv(timeout=60))
        self.socket = socket


def opened(served: Served, name: str = "box", key: str = "plain", **more: Any) -> Client:
    url = f"{served.gateway.url.replace('http', 'ws', 1)}/codex/{name}/{served.keys[key]}"
    return Client(served._stack.enter_context(connect(url, max_size=None, **more)))


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    client = opened(served)
    client.initialize()
    yield client
    client.socket.close()


def test_a_process_runs_and_its_events_can_be_read_again(client: Client) -> None:
    printed, code = client.ran("1", "bash", "-c", "echo a; echo b >&2; exit 3", envPolicy={"set": {"A": "1"}})
    assert (sorted(printed.split()), code) == ([b"a", b"b"], 3)
    again = client.call("process/read", processId="1", afterSeq=1)
    assert ([each["seq"] for each in again["chunks"]], again["nextSeq"], again["closed"]) == ([2], 5, True)
    few = client.call("process/read", processId="1", maxBytes=1)
    assert (len(few["chunks"]), few["nextSeq"]) == (1, 2)
    assert client.ran("2", "sh", "-c", "echo $0 $A", arg0="renamed", env={"A": "2"}) == (b"renamed 2\n", 0)
    assert client.start("1", "true") == (-32600, "process 1 already exists")
    assert client.start("3")[0] == -32602
    assert client.start("3", "no-such-program") == (-32603, "no-such-program: No such file or directory")
    assert client.start("3", "true", cwd="/nowhere")[0] == -32603


def test_long_output_comes_whole_and_its_end_can_be_read_again(client: Client) -> None:
    printed, _ = client.ran("1", "head", "-c", "5000000", "/dev/zero")
    assert len(printed) == 5_000_000
    chunks = client.call("process/read", processId="1")["chunks"]
    assert KEPT * 0.9 < sum(len(base64.b64decode(each["chunk"])) for each in chunks) <= KEPT


def test_output_of_ended_processes_is_kept_within_bounds(client: Client) -> None:
    for number in range(18):
        client.ran(str(number), "head", "-c", "1000000", "/dev/zero")
    kept = [client.call("process/read", processId=str(number)) for number in range(18)]
    assert kept[0] == (-32600, "unknown process id 0")
    sizes = [sum(len(base64.b64decode(each["chunk"])) for each in found["chunks"]) for found in kept[1:]]
    assert sizes[0] == 0
    assert sizes[-1] == 1_000_000
    assert sum(sizes) <= KEPT_ENDED + 2_000_000
    assert all(found["closed"] and found["exitCode"] == 0 for found in kept[1:])


def test_input_terminals_and_interrupts(client: Client) -> None:
    client.start("1", "cat", pipeStdin=True)
    for _ in range(2):  # a client may repeat a write
        write = {"processId": "1", "chunk": encoded(b"hi\n"), "writeId": "w"}
        assert client.call("process/write", **write) == {"status": "accepted"}
    assert client.call("process/read", processId="1", waitMs=30_000)["chunks"][0]["chunk"] == encoded(b"hi\n")
    assert client.call("process/signal", processId="1", signal="interrupt") == {}
    assert client.output("1") == (b"hi\n", 130)
    client.start("2", "bash", "-c", "tty; stty size; read x; echo got $x; sleep 100", tty=True)
    assert client.call("process/write", processId="2", chunk=encoded(b"you\n"), writeId="w") == {"status": "accepted"}
    while b"got you" not in (seen := b"".join(base64.b64decode(each["params"]["chunk"]) for each in client.of("2"))):
        client._read()
    assert b"/dev/pts" in seen
    assert b"24 80" in seen
    waiting = client.begin("process/read", processId="2", afterSeq=1_000, waitMs=60_000)
    assert client.call("process/terminate", processId="2") == {"running": True}
    assert client.output("2")[1] == 137
    assert client.call("process/terminate", processId="2") == {"running": False}
    client.begin("process/write", processId="2", chunk="", writeId="v")
    assert client.answer(waiting)["result"]["exitCode"] in (None, 137)
    missing = client.call("process/write", processId="9", chunk="", writeId="w")
    assert missing == {"status": "unknownProcess"}
    client.start("3", "true")
    assert client.call("process/write", processId="3", chunk="", writeId="w") == {"status": "stdinClosed"}


def test_files(client: Client) -> None:
    at = "file:///workspace"
    assert client.call("fs/createDirectory", path=f"{at}/d/e") == {}
    assert client.call("fs/createDirectory", path=f"{at}/d/e", recursive=False)[0] == -32603
    assert client.call("fs/writeFile", path=f"{at}/none/a", dataBase64="")[0] == -32004
    assert client.call("fs/writeFile", path=f"{at}/d/a%20b", dataBase64=encoded(b"text")) == {}
    assert client.call("fs/readFile", path=f"{at}/d/a%20b") == {"dataBase64": encoded(b"text")}
    assert client.call("fs/readFile", path=f"{at}/d")[0] == -32600
    assert client.call("fs/readFile", path="/workspace/d")[0] == -32602
    client.ran("ln", "ln", "-s", "d/a b", "link")
    found = client.call("fs/getMetadata", path=f"{at}/link")
    assert (found["isSymlink"], found["isFile"], found["size"]) == (True, True, 4)
    assert client.call("fs/getMetadata", path=f"{at}/link", followSymlinks=False)[0] == -32600
    assert client.call("fs/canonicalize", path=f"{at}/link")["path"] == f"{at}/d/a%20b"
    assert client.call("fs/canonicalize", path=f"{at}/none")[0] == -32004
    entries = client.call("fs/readDirectory", path=at)["entries"]
    assert [(each["fileName"], each["isDirectory"]) for each in entries] == [("d", True), ("link", False)]
    limits = {"maxDepth": 9, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": False}
    walked = client.call("fs/walk", path=at, options=limits)
    assert [each["path"] for each in walked["entries"]] == [f"{at}/d", f"{at}/d/a%20b", f"{at}/d/e"]
    assert client.call("fs/walk", path=at, options={**limits, "maxEntries": 1})["truncated"]
    assert client.call("fs/copy", sourcePath=f"{at}/d", destinationPath=f"{at}/f", recursive=False)[0] == -32600
    assert client.call("fs/copy", sourcePath=f"{at}/d", destinationPath=f"{at}/d/e/x", recursive=True)[0] == -32600
    assert client.call("fs/copy", sourcePath=f"{at}/d", destinationPath=f"{at}/f", recursive=True) == {}
    assert client.call("fs/remove", path=f"{at}/f", recursive=False)[0] == -32603
    assert client.call("fs/remove", path=f"{at}/f") == {}
    assert client.call("fs/remove", path=f"{at}/f") == {}
    assert client.call("fs/remove", path=f"{at}/f", force=False)[0] == -32004
    assert client.call("fs/remove", path=at)[0] == -32600


def test_files_in_blocks(client: Client) -> None:
    path = "file:///workspace/big"
    assert client.call("fs/open", handleId="w", path=path, mode="replace") == {"handleId": "w"}
    assert client.call("fs/writeBlock", handleId="w", offset=0, chunk=encoded(b"abc")) == {}
    assert client.call("fs/writeBlock", handleId="w", offset=0, chunk=encoded(b"abc"))[0] == -32600
    assert client.call("fs/writeBlock", handleId="w", offset=3, chunk=encoded(b"def")) == {}
    assert client.call("fs/close", handleId="w") == {}
    assert client.call("fs/open", handleId="r", path=path) == {"handleId": "r"}
    assert client.call("fs/open", handleId="r", path=path)[0] == -32600
    block = {"handleId": "r", "offset": 1}
    assert client.call("fs/readBlock", **block, len=2) == {"chunk": encoded(b"bc"), "eof": False}
    assert client.call("fs/readBlock", **block, len=99) == {"chunk": encoded(b"bcdef"), "eof": True}
    assert client.call("fs/readBlock", **block, len=2**40)[0] == -32602
    assert client.call("fs/readBlock", handleId="x", offset=0, len=1)[0] == -32004


def test_the_sandbox_describes_itself_and_refuses_what_it_does_not_have(client: Client) -> None:
    assert client.call("environment/info")["cwd"] == "file:///workspace"
    assert client.call("environment/status") == {"status": "ready"}
    assert client.call("fs/watchMissing", watchId=1, missing=[]) == (
        -32601,
        "This exec-server has no method fs/watchMissing.",
    )
    code, message = client.call("http/request", method="GET", url="http://example.org/", requestId="1")
    assert code == -32600
    assert "has no network" in message
    assert client.call("initialize", clientName="again")[0] == -32600


def test_a_session_waits_for_its_client_and_ends_without_it(served: Served, client: Client) -> None:
    served.gateway.app.state.mounted["/codex"].state.wire.detached_seconds = 10
    session = opened(served)
    id_ = session.initialize()["sessionId"]
    session.start("1", "bash", "-c", "read x; echo $$; exec sleep 1000", pipeStdin=True)
    assert client.call("process/read", processId="1")[0] == -32600  # each session has its own
    refused = opened(served).initialize(id_)
    assert refused == (-32010, f"session {id_} is already attached to another connection")
    session.socket.close()
    back = opened(served)
    until(lambda: isinstance(back.initialize(id_), dict))
    assert back.call("process/write", processId="1", chunk=encoded(b"kept\n"), writeId="1") == {"status": "accepted"}
    (chunk,) = back.call("process/read", processId="1", waitMs=30_000)["chunks"]
    pid = int(base64.b64decode(chunk["chunk"]))
    other = opened(served, key="first")
    assert other.initialize(id_) == (-32600, f"unknown session id {id_}")
    back.socket.close()
    assert client.ran("end", "tail", f"--pid={pid}", "-f", "/dev/null") == (b"", 0)


def test_a_name_of_a_key_is_a_container(served: Served, client: Client) -> None:
    client.call("fs/writeFile", path="file:///workspace/a", dataBase64="")
    for name, key, is_there in (("box", "plain", True), ("other", "plain", False), ("box", "first", False)):
        other = opened(served, name, key)
        other.initialize()
        assert isinstance(other.call("fs/readFile", path="file:///workspace/a"), dict) == is_there
        other.socket.close()
    assert len([row for row in served.rows if row.origin.endswith("codex")]) == 3


def test_a_socket_needs_a_key_which_no_log_has(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    caplog.set_level("INFO", "websockets.client")  # the client's own
    caplog.set_level("WARNING", "httpx")
    caplog.set_level("INFO", "uvicorn.error")  # as `serve` has it
    url = f"{served.gateway.url.replace('http', 'ws', 1)}/codex/box"
    key = served.keys["plain"]
    for refused in (url, f"{url}/wrong", f"{url}{'n' * 200}/{key}", f"{url}/{key}/", f"{url}/{key}/more"):
        with pytest.raises(InvalidStatus):
            connect(refused)
    with pytest.raises(InvalidStatus):
        connect(f"{url}/{key}", additional_headers={"Authorization": "Bearer wrong"})
    assert httpx.get(f"{served.gateway.url}/codex/box/{key}").status_code == 401
    headers = {"Authorization": f"Bearer {key}"}
    socket = served._stack.enter_context(connect(url, additional_headers=headers))
    assert "sessionId" in Client(socket).initialize()
    opened(served).socket.close()
    until(lambda: caplog.text.count("/codex") >= 8)
    assert key not in caplog.text


def test_a_key_in_the_path_is_refused_for_its_reason(served: Served) -> None:
    services = served.gateway.services
    with pytest.raises(InvalidStatus, match="401"):
        connect(f"{served.gateway.url.replace('http', 'ws', 1)}/codex/box/wrong")
    NamedKeys(services.store).limit("plain", KeyLimits(max_requests_per_minute=1))
    services._read_keys()
    opened(served).socket.close()
    with pytest.raises(InvalidStatus, match="429"):
        opened(served)


def test_a_revoked_key_runs_nothing_more_over_its_open_socket(served: Served, client: Client) -> None:
    services = served.gateway.services
    assert client.start("1", "sleep", "1000")["processId"] == "1"
    NamedKeys(services.store).revoke("plain")
    until(lambda: not served.running)
    with pytest.raises(ConnectionClosed) as closed:
        client.start("2", "sleep", "1000")
    assert closed.value.rcvd
    assert closed.value.rcvd.code == 1008
    assert not served.running


def test_a_message_that_is_too_large_ends_the_connection(served: Served, client: Client) -> None:
    greedy = opened(served)
    greedy.initialize()
    with pytest.raises(ConnectionClosed):
        greedy.call("fs/writeFile", path="file:///workspace/a", dataBase64="A" * (33 << 20))
    assert client.call("environment/status") == {"status": "ready"}


def test_messages_that_are_none_are_refused(client: Client) -> None:
    for text in ("nonsense", "[]", '{"id": 1}', '{"id": 1, "method": 2}', "[" * 1_000, '{"id":1e400,"method":"a"}'):
        client.socket.send(text)
        assert client.answer(-1)["error"]["code"] == -32600
    client.socket.send('[{"id": 1, "method": "environment/info"}]')
    assert "it is a batch" in client.answer(-1)["error"]["message"]
    assert client.call("process/read", processId="x" * 300)[0] == -32602
    assert (
        client.call("process/start", processId="1", argv=["a"] * 10_001, cwd="file:///", env={}, tty=False)[0] == -32602
    )
    assert client.call("fs/readFile", path="file:///workspace/%00")[0] == -32600
    client.socket.send(json.dumps({"method": "surprise"}))
    assert client.answer(-1)["error"]["code"] == -32600
    with pytest.raises(ConnectionClosed):
        client.socket.recv(timeout=30)


def test_sessions_and_processes_are_limited(served: Served, client: Client) -> None:
    others = [opened(served) for _ in range(MAX_SESSIONS)]
    answers = [other.initialize() for other in others]
    assert [isinstance(each, dict) for each in answers] == [True] * (MAX_SESSIONS - 1) + [False]
    started = [client.start(str(number), "sleep", "1000") for number in range(33)]
    assert started[31] == {"processId": "31", "sandboxType": "none"}
    assert "32 commands are open" in started[32][1]


def test_a_client_that_does_not_read_stops_its_process(served: Served, client: Client) -> None:
    lazy = opened(served, max_queue=1)
    lazy.initialize()
    lazy.begin(
        "process/start", processId="1", argv=["bash", "-c", "yes & echo $!; wait"], cwd="file:///", env={}, tty=False
    )
    numbers = iter(range(1_000))

    def cpu() -> bytes:
        return client.ran(
            str(next(numbers)), "bash", "-c", "grep -h ^ /proc/[0-9]*/stat | awk '$2==\"(yes)\"{print $14}'"
        )[0]

    until(lambda: (seen := cpu()) and seen == cpu())
    lazy.socket.close()
