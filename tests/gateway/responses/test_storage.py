"""Storing responses: in full, not at all, within a share, or as far as the disk and the database allow."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from agent_tools.containers.failures import DiskFull
from agent_tools.containers.shares import Shares
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.responses.storage import check_quota
from agent_tools.gateway.store.records import (
    ResponseEnd,
    ResponseInput,
    StoredCall,
    StoredEvents,
    StoredItem,
    StoredResponse,
)
from agent_tools.gateway.store.store import Store
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import KEYS, code, has_ended, nearly_full, post, refused, retrieve, stream, until
from tests.gateway.conftest import Gateway, NewGateway


def test_what_is_not_stored_is_not_there(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    assert retrieve(gateway, post(gateway, store=False).json()["id"]).status_code == 404
    kept = post(gateway, input="Hello?").json()
    assert retrieve(gateway, kept["id"]).json() == kept
    (item,) = gateway.client().responses.input_items.list(kept["id"])
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "Hello?"}]
    assert httpx.post(f"{gateway.url}/v1/responses/{kept['id']}/cancel").status_code == 400
    gateway.client().responses.delete(kept["id"])
    assert retrieve(gateway, kept["id"]).status_code == 404
    assert post(gateway, previous_response_id=kept["id"]).json()["error"]["code"] == "previous_response_not_found"


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
    tool_answer = sum(len(call.tool_answer) for call in store.find(StoredCall))
    events = sum(len(each.data) for each in store.find(StoredEvents))
    assert bool(events) is background
    texts = (row.body, row.input, row.conversation, row.tools)
    assert row.bytes == sum(map(len, texts)) + tool_answer + events > 3000
    assert httpx.delete(f"{gateway.url}/v1/responses/{id_}").status_code == 200
    for kind in (StoredResponse, StoredItem, StoredCall, StoredEvents):
        assert store.count(kind) == 0


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
    check_quota(SimpleNamespace(config=config, store=store, shares=shares), "me")  # type: ignore[arg-type]
    with pytest.raises(DiskFull, match="nearly full"):
        shares.check_disk()
    store.close()


def test_what_is_kept_is_answered_as_it_is_kept(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    made = post(gateway, tools=[])
    one = f"{gateway.url}/v1/responses/{made.json()['id']}"
    assert httpx.get(one).content == made.content
    gateway.services.store.change(StoredResponse, made.json()["id"], body="not even JSON")
    assert httpx.get(one).text == "not even JSON"
    assert httpx.get(one).headers["content-type"] == "application/json"


def test_of_the_input_only_what_a_page_shows_is_read(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    said = [{"id": f"msg_{n}", "role": "user", "content": str(n)} for n in range(30)]
    id_ = post(gateway, tools=[], input=said).json()["id"]
    kept = gateway.services.store.find(ResponseInput, id=id_)[0].input.split("\n")
    kept[2:] = [line[:16] + " not JSON" for line in kept[2:]]
    gateway.services.store.change(StoredResponse, id_, input="\n".join(kept))
    items = f"{gateway.url}/v1/responses/{id_}/input_items"
    page = httpx.get(items, params={"order": "asc", "limit": 2}).json()
    assert [item["id"] for item in page["data"]] == ["msg_0", "msg_1"]
    assert page["has_more"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "0"}]
    assert [item["id"] for item in httpx.get(items, params={"after": "msg_1"}).json()["data"]] == ["msg_0"]


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_conversation_does_not_grow_without_end_from_response_to_response(
    new_gateway: NewGateway, status: str
) -> None:
    reply = ScriptedReply(text="Ok.") if status == "completed" else ScriptedReply(status=400, text="Too long.")
    gateway = new_gateway({"m": lambda _: reply}, max_conversation_bytes=1_000)
    last, sizes = None, list[int]()
    for _ in range(4):
        begun = post(gateway, input="x" * 400, tools=[], background=True, previous_response_id=last)
        if begun.status_code != 200:
            break
        last = begun.json()["id"]
        assert until(partial(has_ended, gateway, last))["status"] == status
        sizes.append(len(gateway.services.store.get(ResponseEnd, last).conversation))
    assert (begun.status_code, begun.json()["error"]["code"]) == (400, "storage_limit_exceeded")
    assert len(sizes) in (2, 3)
    assert sizes[-2] <= 1_000 < sizes[-1]
    assert post(gateway, input="x", tools=[], previous_response_id=last, store=False).status_code == 400
