"""Items that a request names instead of repeating them, and what is kept for that."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from agent_tools.gateway.store.records import StoredCall, StoredItem, StoredResponse
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.test_lifecycle import SLEEP, is_idle, until
from tests.gateway.test_responses import FUNCTION, INCLUDE, code, outputs, post

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


def test_nothing_is_kept_of_a_response_that_is_deleted_under_way(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), code(SLEEP)]})
    begun = post(gateway, background=True).json()
    until(lambda: any(gateway.services.containers.running().values()))
    httpx.delete(f"{gateway.url}/v1/responses/{begun['id']}")
    until(lambda: is_idle(gateway))
    assert kept(gateway) == [0, 0, 0]
