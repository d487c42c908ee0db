"""What each key may keep: containers, uploads, responses; and the disk that everyone shares."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request

from agent_tools.errors import InvalidParams
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.containers.failures import ContainersError, DiskFull, StorageFull
from agent_tools.gateway.containers.shares import Shares
from agent_tools.gateway.forms import LOOK_EVERY, MAX_FIELD_BYTES, MAX_FIELDS, MAX_FRAME_BYTES, file_form
from agent_tools.gateway.requests.container_fields import MAX_FILES
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.responses.share import ResponseShare
from agent_tools.gateway.store.records import Container, StoredCall, StoredEvents, StoredItem, StoredResponse
from agent_tools.gateway.store.store import Store
from agent_tools.settings import GIB, MIB
from agent_tools.testing import ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.test_lifecycle import has_ended, until
from tests.gateway.test_responses import CODE_TOOL, code, outputs, post, stream

KEYS = ("first-key-123", "second-key-123")
BOUNDARY = {"Content-Type": "multipart/form-data; boundary=b"}
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


def upload(client: openai.OpenAI, size: int) -> Any:
    return client.files.create(file=("a.bin", io.BytesIO(b"a" * size)), purpose="user_data")


def refused(use: Any) -> tuple[int, str, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        use()
    return caught.value.status_code, str(caught.value.code), caught.value.message


def nearly_full(gateway: Gateway, *, left: int = 0) -> None:
    gateway.services.shares.free = lambda _: gateway.services.config.min_disk_free + left


def test_uploads_have_a_share_of_bytes_and_of_number_for_each_key(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, max_uploads_bytes=1000, max_uploads=3)
    mine, theirs = gateway.client(KEYS[0]), gateway.client(KEYS[1])
    first = upload(mine, 600)
    status, kind, message = refused(lambda: upload(mine, 401))
    assert (status, kind) == (400, "storage_limit_exceeded")
    assert "DELETE /v1/files/" in message
    upload(mine, 400)
    assert "DELETE /v1/files/" in refused(lambda: upload(mine, 1))[2]
    upload(theirs, 1000)
    mine.files.delete(first.id)
    upload(mine, 1), upload(mine, 1)
    assert refused(lambda: upload(mine, 1))[:2] == (400, "storage_limit_exceeded")
    assert len(list((gateway.services.config.data_dir / "uploads").iterdir())) == 4


def test_files_in_containers_have_a_share_for_each_key(new_gateway: NewGateway) -> None:
    write = code(f"open('big', 'wb').write(bytes({2 * MIB}))")
    gateway = new_gateway({"m": [write, "Ok."]}, api_keys=KEYS, max_containers_bytes=3 * MIB)
    mine, theirs = gateway.client(KEYS[0]), gateway.client(KEYS[1])
    tools: Any = [CODE_TOOL]
    body = mine.responses.create(model="m", input="Go.", tools=tools).to_dict()
    made = outputs(body)[0]["container_id"]
    put = lambda size: mine.containers.files.create(made, file=("b", b"b" * size))  # noqa: E731
    for size in (2 * MIB + 100_000, MIB + 100_000):
        assert refused(lambda size=size: put(size))[:2] == (400, "storage_limit_exceeded")
    put(MIB)
    status, kind, message = refused(lambda: mine.containers.create(name="another"))
    assert (status, kind) == (400, "storage_limit_exceeded")
    assert "DELETE /v1/containers/" in message
    assert refused(lambda: mine.responses.create(model="m", input="Go.", tools=tools))[:2] == (status, kind)
    assert refused(lambda: put(1))[:2] == (status, kind)
    theirs.containers.create(name="theirs")
    mine.containers.delete(made)
    mine.containers.create(name="another")


def test_code_may_write_what_is_left_of_its_keys_share(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]}, max_containers_bytes=5 * MIB, max_container_bytes=4 * MIB)
    client, store = gateway.client(), gateway.services.store
    full, other = client.containers.create(name="full").id, client.containers.create(name="other").id
    store.change(Container, full, bytes=3 * MIB)
    (row,) = store.find(Container, id=other)
    assert gateway.services.containers._cfg(row)["limits"]["max_work_dir_bytes"] == 2 * MIB
    store.change(Container, full, bytes=30 * MIB, status="deleting")  # its files are there until it is done
    assert gateway.services.containers._cfg(row)["limits"]["max_work_dir_bytes"] == MIB
    store.change(Container, full, status="expired")
    assert gateway.services.containers._cfg(row)["limits"]["max_work_dir_bytes"] == 4 * MIB


@pytest.mark.parametrize("limit", [{"max_stored_responses": 1}, {"max_stored_bytes": 10_000}], ids=str)
@pytest.mark.parametrize("background", [False, True])
def test_stored_responses_have_a_share_of_number_and_bytes(
    new_gateway: NewGateway, limit: dict[str, int], background: bool
) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="x" * 6_000)}, api_keys=KEYS, **limit)
    mine, theirs = gateway.client(KEYS[0]), gateway.client(KEYS[1])
    asked: Any = {"model": "m", "input": "Go.", "background": background}
    kept = mine.responses.create(**asked)
    until(lambda: mine.responses.retrieve(kept.id).status == "completed")
    status, kind, message = refused(lambda: mine.responses.create(**asked))
    assert (status, kind) == (400, "storage_limit_exceeded")
    assert "DELETE /v1/responses/" in message
    assert "'store': false" in message
    assert mine.responses.create(**{**asked, "background": False}, store=False).status == "completed"
    theirs.responses.create(**asked)
    mine.responses.delete(kept.id)
    mine.responses.create(**asked)


@pytest.mark.parametrize("background", [False, True])
def test_all_that_is_kept_of_a_response_is_counted(new_gateway: NewGateway, background: bool) -> None:
    gateway = new_gateway({"m": [code("print('y' * 1000)"), "Ok."]})
    id_ = post(gateway, background=background, instructions="i" * 1000).json()["id"]
    until(lambda: has_ended(gateway, id_))
    store = gateway.services.store
    (row,) = store.find(StoredResponse, id=id_)
    told = sum(len(call.told) for call in store.find(StoredCall))
    events = sum(len(each.data) for each in store.find(StoredEvents))
    assert bool(events) is background
    assert row.bytes == len(row.body) + len(row.input) + len(row.conversation) + told + events > 3000
    assert httpx.delete(f"{gateway.url}/v1/responses/{id_}").status_code == 200
    for kind in (StoredResponse, StoredItem, StoredCall, StoredEvents):
        assert store.count(kind) == 0


def test_where_the_disk_is_nearly_full_nothing_more_is_taken_and_what_is_not_kept_goes_on(
    new_gateway: NewGateway,
) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    client = gateway.client()
    container = client.containers.create(name="a")
    nearly_full(gateway, left=-1)
    for use in (
        lambda: upload(client, 10),
        lambda: client.containers.create(name="b"),
        lambda: client.containers.files.create(container.id, file=("b", b"b")),
        lambda: client.responses.create(model="m", input="Go."),
    ):
        assert refused(use)[:2] == (507, "insufficient_storage")
    assert client.responses.create(model="m", input="Go.", store=False).status == "completed"
    nearly_full(gateway, left=100)
    upload(client, 100)
    assert refused(lambda: upload(client, 101))[0] == 507
    assert len(list(client.files.list())) == 1


def _full_while_asked(gateway_of: list[Gateway]) -> Any:
    def reply(_: Any) -> ScriptedReply:
        nearly_full(gateway_of[0], left=-1)
        return ScriptedReply(text="Made at great cost.")

    return reply


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_response_that_cannot_be_kept_is_answered_and_says_so(new_gateway: NewGateway, is_streamed: bool) -> None:
    found: list[Gateway] = []
    gateway = new_gateway({"m": _full_while_asked(found)})
    found.append(gateway)
    body = stream(gateway, tools=[])[-1]["response"] if is_streamed else post(gateway, tools=[]).json()
    assert (body["status"], body["store"]) == ("completed", False)
    assert body["output"][0]["content"][0]["text"] == "Made at great cost."
    assert httpx.get(f"{gateway.url}/v1/responses/{body['id']}").status_code == 404


def test_one_in_the_background_that_cannot_be_kept_has_failed_and_says_why(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Gateway] = []
    gateway = new_gateway({"m": _full_while_asked(found)})
    found.append(gateway)
    events = stream(gateway, tools=[], background=True)
    assert (events[-1]["type"], events[-1]["response"]["store"]) == ("response.completed", False)
    body = httpx.get(f"{gateway.url}/v1/responses/{events[-1]['response']['id']}").json()
    assert (body["status"], body["output"]) == ("failed", [])
    assert "could not be stored" in body["error"]["message"]
    assert "could not be stored" in caplog.text
    assert "at great cost" not in caplog.text


def test_a_response_is_answered_where_the_database_takes_nothing(new_gateway: NewGateway) -> None:
    gateways: list[Gateway] = []

    def broken(_: Any) -> ScriptedReply:
        with sqlite3.connect(gateways[0].services.config.data_dir / "gateway.db") as database:
            database.execute("DROP TABLE responses")
        return ScriptedReply(text="Ok.")

    gateways.append(new_gateway({"m": broken}))
    body = stream(gateways[0], tools=[])[-1]["response"]
    assert (body["status"], body["store"]) == ("completed", False)


def test_the_disk_of_another_machines_database_is_not_looked_at(work_dir: Path) -> None:
    store = Store(f"sqlite:///{work_dir}/s.db")
    config = GatewayConfig("http://u", data_dir=work_dir, database="postgresql://elsewhere/d")
    shares = Shares(config, store, lambda _: 0)
    ResponseShare(config, store, shares).check("me")
    with pytest.raises(DiskFull, match="nearly full"):
        shares.check_disk()
    store.close()


def test_a_share_is_a_part_of_the_whole() -> None:
    for share in (0.0, 1.1, -1.0):
        with pytest.raises(InvalidParams, match="key_share"):
            GatewayConfig("http://u", key_share=share)


# -- forms ------------------------------------------------------------------------------------------------------------


def sent(gateway: Gateway, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/files", content=content, headers={**BOUNDARY, **(headers or {})}, timeout=60)


def field(name: str, value: bytes, more: bytes = b"") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n%s\r\n' % (name.encode(), more, value)


def test_a_form_is_bounded_in_all_its_parts(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    file, end = HEAD + b"x\r\n", b"--b--\r\n"
    assert sent(gateway, field("purpose", b"user_data") + file + end).status_code == 200
    for content in (
        b"".join(field(f"f{n}", b"x") for n in range(MAX_FIELDS + 1)) + file + end,
        field("f", b"x" * (MAX_FIELD_BYTES + 1)) + file + end,
        field("f", b"x", b"X-Long: " + b"x" * 100_000 + b"\r\n") + file + end,
        field("f", b"x", b"X-Many: x\r\n" * 1000) + file + end,
        file + file + end,
        b"no form",
        b"{}",
    ):
        assert sent(gateway, content).status_code == 400, content[:100]
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=" + "b" * 5000, ""):
        assert sent(gateway, file + end, {"Content-Type": kind}).status_code == 400, kind


@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-16", '"utf-7"'])
def test_a_form_is_read_in_utf_8_only(new_gateway: NewGateway, charset: str) -> None:
    content = field("purpose", b"user_data") + HEAD + b"x\r\n--b--\r\n"
    kind = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    answer = sent(new_gateway({}), content, kind)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Send the form in UTF-8.")


class Sender:
    """A client that sends without end; counts what was taken from it."""

    def __init__(self) -> None:
        self.taken = 0
        self._next = HEAD

    async def __call__(self) -> dict[str, Any]:
        piece, self._next = self._next, bytes(64 * 1024)
        self.taken += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}


@pytest.mark.parametrize(
    ("left", "most", "free", "status"),
    [(MIB, GIB, 8 * GIB, 400), (GIB, MIB, 8 * GIB, 413), (GIB, GIB, 0, 507)],
    ids=["share", "size", "disk"],
)
def test_an_upload_without_end_is_refused_soon(work_dir: Path, left: int, most: int, free: int, status: int) -> None:
    shares = Shares(GatewayConfig("http://u", data_dir=work_dir), Store("sqlite://"), lambda _: free)

    async def take(sender: Sender) -> None:
        headers = [(b"content-type", BOUNDARY["Content-Type"].encode())]
        scope = {"type": "http", "method": "POST", "headers": headers, "owner": "me"}
        async with file_form(Request(scope, sender), shares, lambda _: left, most):
            raise AssertionError

    for _ in range(2):  # what was refused does not count any more
        sender = Sender()
        with pytest.raises((ApiError, ContainersError)) as refusal:
            asyncio.run(take(sender))
        assert client_error(refusal.value).status == status
        assert sender.taken <= (0 if status == 507 else MIB) + MAX_FRAME_BYTES + LOOK_EVERY // 100


def test_uploads_at_the_same_time_share_what_is_left(work_dir: Path) -> None:
    shares = Shares(GatewayConfig("http://u", data_dir=work_dir), Store("sqlite://"))
    with shares.arriving("me", 100) as one, shares.arriving("me", 100) as other, shares.arriving("you", 100) as yours:
        one(60)
        other(40)
        yours(100)
        with pytest.raises(StorageFull, match="files"):
            one(1)
    with shares.arriving("me", 100) as again:
        again(100)


# -- numbers of a query -----------------------------------------------------------------------------------------------


def test_a_number_of_a_query_that_cannot_be_read_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = post(gateway, tools=[], background=True).json()["id"]
    until(lambda: has_ended(gateway, id_))
    container = gateway.client().containers.create(name="a").id
    lists = ("containers", "files", f"containers/{container}/files", f"responses/{id_}/input_items")
    numbers = ("9" * 5000, "-" + "9" * 5000, "9" * 19, "\u0661", "1e3", "", "0x1", "1.0", " 1")
    for number in numbers:
        queries = [(path, {"limit": number}) for path in lists]
        for path, query in (*queries, (f"responses/{id_}", {"stream": "true", "starting_after": number})):
            answer = httpx.get(f"{gateway.url}/v1/{path}", params=query)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, list(query)[-1]), (path, number[:20])


def test_a_new_container_is_given_so_many_files(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = upload(gateway.client(), 10).id
    assert gateway.client().containers.create(name="a", file_ids=[id_] * MAX_FILES).name == "a"
    auto = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [id_] * (MAX_FILES + 1)}}
    assert post(gateway, tools=[auto]).json()["error"]["param"] == "tools[0].container.file_ids"
    assert refused(lambda: gateway.client().containers.create(name="a", file_ids=[id_] * (MAX_FILES + 1)))[0] == 400


def test_a_stream_begins_after_any_number(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = post(gateway, tools=[], background=True).json()["id"]
    until(lambda: has_ended(gateway, id_))
    got = {}
    for after in ("-99", "-1", "3", "9" * 15):
        text = httpx.get(f"{gateway.url}/v1/responses/{id_}?stream=true&starting_after={after}").text
        got[after] = [json.loads(line[6:])["sequence_number"] for line in text.split("\n") if line[:7] == "data: {"]
    assert got["-99"] == got["-1"]
    assert got["-1"][0] == 0
    assert got["3"] == got["-1"][4:]
    assert got["9" * 15] == []
