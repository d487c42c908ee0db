"""Ids of any length and with any characters: a client is told what is wrong with them, on every database."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, in_container
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.postgresql import postgresql

__all__ = ["postgresql"]

ODD = {"long": "x" * 5_000, "zero": "a\0b", "half": "a\ud800b", "wide": "\N{GRINNING FACE}" * 65}
SAID = {"type": "message", "role": "user", "content": "Go."}


@pytest.fixture(params=["sqlite", "postgresql"])
def gateway(request: pytest.FixtureRequest, new_gateway: NewGateway, postgresql: str) -> Gateway:
    more = {"database": postgresql} if request.param == "postgresql" else {}
    return new_gateway({"m": lambda _: ScriptedReply("Ok.")}, **more)


def post(gateway: Gateway, path: str = "responses", **body: Any) -> httpx.Response:
    content = json.dumps({"model": "m", "input": "Go.", "tools": [CODE_TOOL], **body})  # ASCII, which holds any text
    return httpx.post(f"{gateway.url}/v1/{path}", content=content, timeout=60)


@pytest.mark.parametrize("id_", ODD.values(), ids=ODD)
def test_what_an_odd_id_names_is_not_found(gateway: Gateway, id_: str) -> None:
    path = httpx.URL(gateway.url).copy_with(raw_path=b"/")
    quoted = "".join(f"%{byte:02X}" for byte in id_.encode("utf-8", "replace"))
    made = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    container = httpx.post(f"{gateway.url}/v1/containers", json={"name": "c"}).json()["id"]
    for place in ("responses", "conversations", "containers", "files", f"conversations/{made}/items"):
        for method in ("GET", "DELETE"):
            answer = httpx.request(method, path.copy_with(raw_path=f"/v1/{place}/{quoted}".encode()))
            assert answer.status_code == 404, (method, place, answer.text)
    answer = httpx.get(path.copy_with(raw_path=f"/v1/containers/{container}/files/{quoted}".encode()))
    assert answer.status_code == 404
    listed = httpx.get(path.copy_with(raw_path=f"/v1/conversations/{made}/items?after={quoted}".encode()))
    assert listed.status_code in (400, 404)


@pytest.mark.parametrize("id_", ODD.values(), ids=ODD)
@pytest.mark.parametrize(
    "more",
    [
        lambda id_: {"previous_response_id": id_},
        lambda id_: {"conversation": id_},
        lambda id_: {"input": [{"type": "item_reference", "id": id_}]},
        lambda id_: {"tools": in_container(id_)},
        lambda id_: {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [id_]}}]},
        lambda id_: {"input": [{"type": "mcp_approval_response", "approval_request_id": id_, "approve": True}]},
        lambda id_: {"input": [{**SAID, "content": [{"type": "input_file", "file_id": id_}]}]},
    ],
    ids=["previous", "conversation", "reference", "container", "file", "approval", "input_file"],
)
def test_a_request_that_names_an_odd_id_is_refused(gateway: Gateway, id_: str, more: Any) -> None:
    answer = post(gateway, **more(id_))
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("id_", [ODD["long"], ODD["zero"], ODD["wide"]], ids=["long", "zero", "wide"])
def test_items_with_odd_ids_are_kept_or_refused_and_never_lost(gateway: Gateway, id_: str) -> None:
    items = [
        {**SAID, "id": id_},
        {"type": "function_call", "id": id_, "call_id": id_, "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": id_, "output": "wet"},
        {"type": "code_interpreter_call", "id": id_, "code": "1", "container_id": id_, "outputs": []},
    ]
    answer = post(gateway, input=items, tools=[CODE_TOOL])
    assert (answer.status_code, answer.json().get("status")) == (200, "completed"), answer.text
    made = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    answer = post(gateway, input=items, conversation=made)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].id")
    answer = post(gateway, path=f"conversations/{made}/items", items=items)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items[0].id")
    assert httpx.get(f"{gateway.url}/v1/conversations/{made}/items").json()["data"] == []
