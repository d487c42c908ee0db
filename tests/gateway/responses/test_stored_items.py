"""Items of stored responses, put in place of references to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from agent_tools.containers.records import Record
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses.stored_items import forget, resolved
from agent_tools.gateway.store.records import StoredCall, StoredEvents, StoredItem, StoredResponse
from agent_tools.gateway.store.store import Store
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import FUNCTION, INCLUDE, SLEEP, code, is_idle, outputs, post, until
from tests.gateway.conftest import Gateway, NewGateway

_Kind = TypeVar("_Kind", bound=Record)


class CountingStore(Store):
    """Counts how often a response's row is read, and all queries."""

    reads = queries = 0

    def find(self, kind: type[_Kind], **where: Any) -> list[_Kind]:
        self.reads += kind.table == "responses"
        self.queries += 1
        return super().find(kind, **where)


def test_a_response_whose_items_are_named_is_read_once_and_within_bounds(work_dir: Path) -> None:
    store = CountingStore(f"sqlite:///{work_dir}/s.db")
    ids = [f"msg_{n}" for n in range(100)]
    body = json.dumps({"output": [{"id": id_, "type": "message"} for id_ in ids]})
    response = StoredResponse(
        id="resp_1",
        owner="me",
        created_at=1.0,
        status="completed",
        background=False,
        gateway="",
        bytes=1,
        container_id=None,
        body=body,
        input="",
        conversation="[]",
    )
    store.add(response, *(StoredItem(id=id_, owner="me", created_at=1.0, response_id="resp_1") for id_ in ids))
    named = [{"type": "item_reference", "id": id_} for id_ in ids]
    assert [item["id"] for item in resolved(store, "me", named, len(body))] == ids
    assert store.reads == 1
    with pytest.raises(ApiError) as refused:
        resolved(store, "me", named, len(body) - 1)
    assert refused.value.status == 413
    with pytest.raises(ApiError) as refused:  # one that is named again and again counts each time
        resolved(store, "me", named[:1] * 1_000, 2 * len(body))
    assert (refused.value.status, store.reads) == (413, 3)
    as_functions = [{"type": "function_call", "name": "code_interpreter", "call_id": id_} for id_ in ("ci_1", "ci_2")]
    large = {"output": [{"id": "ci_1", "type": "code_interpreter_call", "code": "1" * 1_000}]}
    store.add(replace(response, id="resp_2", body=json.dumps(large)))
    store.add(StoredItem(id="ci_1", owner="me", created_at=1.0, response_id="resp_2"))
    with pytest.raises(ApiError) as refused:  # a call of code that comes back as a function's counts, too
        resolved(store, "me", as_functions, 1_000)
    assert refused.value.status == 413
    unknown = [{**as_functions[1], "call_id": f"ci_{number}"} for number in range(100, 1_000)]
    store.queries = 0
    assert resolved(store, "me", [*as_functions * 100, *unknown], 1 << 20)[:2] == [large["output"][0], as_functions[1]]
    assert store.queries < 10
    store.close()


ANSWER = {"type": "function_call_output", "call_id": "call_0", "output": "Rain."}


def references(body: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": item["id"], **more} for item in body["output"]]


def refused(gateway: Gateway, item: dict[str, Any]) -> tuple[int, str | None]:
    answer = post(gateway, input=[{"role": "user", "content": "Go."}, item])
    return answer.status_code, answer.json()["error"]["param"]


def test_named_items_stand_for_what_they_name(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20; x"), ScriptedReply("Ok.", "Hm."), code("x + 1"), "21."]})
    first = post(gateway).json()
    named = [{"role": "user", "content": "Go."}, *references(first), {"role": "user", "content": "And now?"}]
    second = post(gateway, input=named, include=INCLUDE).json()
    (call,) = outputs(second)
    assert call["outputs"] == [{"type": "logs", "logs": "21"}]
    assert call["container_id"] == outputs(first)[0]["container_id"]
    asked = gateway.upstream.requests[2]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
    assert "20" in asked[2]["content"]
    listed = httpx.get(f"{gateway.url}/v1/responses/{second['id']}/input_items").json()["data"]
    assert {item["type"] for item in listed} == {"message", "code_interpreter_call", "reasoning"}


@pytest.mark.parametrize("kind", ["item_reference", None])
def test_a_named_call_of_a_function_can_be_answered(new_gateway: NewGateway, kind: str | None) -> None:
    call = ScriptedCall("weather", {"city": "Ulm"})
    gateway = new_gateway({"m": [ScriptedReply(calls=[call]), "Take an umbrella."]})
    first = post(gateway, tools=[FUNCTION]).json()
    second = post(gateway, tools=[FUNCTION], input=[*references(first, type=kind), ANSWER]).json()
    assert second["output"][0]["content"][0]["text"] == "Take an umbrella."
    assert [message["role"] for message in gateway.upstream.requests[1]["messages"]] == ["assistant", "tool"]


def test_only_what_is_kept_and_ones_own_can_be_named(new_gateway: NewGateway) -> None:
    mine, other = "first-key", "other-key"
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, api_keys=(mine, other))
    responses = gateway.client(mine).responses
    kept = responses.create(model="m", input="Go.")
    loose = responses.create(model="m", input="Go.", store=False)
    deleted = responses.create(model="m", input="Go.")
    responses.delete(deleted.id)
    for key, named, status in [(mine, kept, 200), (other, kept, 404), (mine, loose, 404), (mine, deleted, 404)]:
        body = {"model": "m", "input": [{"type": "item_reference", "id": named.output[0].id}]}
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers).status_code == status


def test_a_reference_that_names_nothing_is_refused_by_place(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []})
    assert refused(gateway, {"type": "item_reference", "id": "msg_none"}) == (404, "input[1].id")
    assert refused(gateway, {"type": "item_reference"}) == (400, "input[1].id")


def kept(gateway: Gateway) -> list[int]:
    return [gateway.services.store.count(table) for table in (StoredResponse, StoredItem, StoredCall)]


def test_nothing_is_kept_of_a_deleted_response(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]})
    body = post(gateway).json()
    assert kept(gateway) == [1, 2, 1]
    httpx.delete(f"{gateway.url}/v1/responses/{body['id']}")
    assert kept(gateway) == [0, 0, 0]


@pytest.mark.parametrize("moment", ["before", "halfway", "after"])
def test_nothing_is_kept_of_a_response_that_is_deleted_as_it_ends(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]})
    store, change = gateway.services.store, gateway.services.store.change_and_add

    def deleted_meanwhile(kind: type[Record], id_: str, *where: Any, **values: Any) -> bool:
        if moment == "before":
            forget(store, id_)
        if moment == "halfway":  # it looked for the items before they were stored
            store.delete(StoredResponse, id=id_)
            store.delete(StoredItem, response_id=id_)
        is_there = change(kind, id_, *where, **values)
        if moment == "after":
            forget(store, id_)
        return is_there

    monkeypatch.setattr(store, "change_and_add", deleted_meanwhile)
    post(gateway, background=True)
    until(lambda: is_idle(gateway))
    assert kept(gateway) == [0, 0, 0]
    assert store.count(StoredEvents) == 0


def test_nothing_is_kept_of_a_response_that_is_deleted_under_way(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), code(SLEEP)]})
    begun = post(gateway, background=True).json()
    until(lambda: any(gateway.services.containers.running().values()))
    httpx.delete(f"{gateway.url}/v1/responses/{begun['id']}")
    until(lambda: is_idle(gateway))
    assert kept(gateway) == [0, 0, 0]


def test_code_that_comes_back_as_a_function_is_what_it_was(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 41"), "Ok.", code("x + 1"), "42."]})
    first = post(gateway).json()
    (item,) = outputs(first)
    call = {
        "type": "function_call",
        "call_id": item["id"],
        "name": "code_interpreter",
        "arguments": '{"code": "x = 41"}',
    }
    said = [{"role": "user", "content": "Go."}, call, {"role": "user", "content": "And one more?"}]
    (again,) = outputs(post(gateway, input=said, include=INCLUDE).json())
    assert (again["outputs"], again["container_id"]) == ([{"type": "logs", "logs": "42"}], item["container_id"])
    assert gateway.upstream.requests[2]["messages"][2]["content"], "what it put out"  # type: ignore[attr-defined]
