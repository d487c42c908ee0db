"""Fields of requests: refused by name, ignored, or mended."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.container_fields import MAX_FILES, Needed, scrubbed
from agent_tools.gateway.requests.fields import RequestModel, read
from tests.gateway.asking import CODE_TOOL, FUNCTION, post, refused, shell, upload
from tests.gateway.conftest import NewGateway


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_of_tomorrow"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "/etc/passwd"}]}]}, None),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"include": ["nonsense"]}, "include[0]"),
        ({"include": [["reasoning.encrypted_content"]]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "manual"}}]}, "tools[0].container.type"),
        ({"tools": [{"type": "code_interpreter", "container": "c" * 65}]}, "tools[0].container"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": 7}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "m", "policy": "block"}}, "moderation"),
        ({"background_options": {"a": "b"}}, "background_options"),
        ({"stream_options": 7}, "stream_options"),
        ({"tools": [{**FUNCTION, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"input": [{"type": "shell_call", "call_id": "c", "action": {"commands": "ls"}}]}, "input[0].action.commands"),
        ({"input": [{"type": "shell_call", "call_id": "c", "action": {"commands": [1]}}]}, "input[0].action.commands"),
        ({"input": [{"type": "shell_call", "action": {"commands": ["ls"]}}]}, "input[0].call_id"),
        ({"input": [{"type": "shell_call_output", "output": []}]}, "input[0].call_id"),
        ({"input": [{"type": "shell_call_output", "call_id": "c", "output": "text"}]}, "input[0].output"),
        ({"input": [{"type": "shell_call_output", "call_id": "c", "output": [{}] * 65}]}, "input[0].output"),
        ({"input": [{"type": "shell_call_output", "call_id": "c", "output": [{}]}]}, "input[0].output[0].outcome.type"),
        ({"tools": [{"type": "shell", "environment": {}}]}, "tools[0].environment.type"),
        ({"tools": [{"type": "shell", "environment": {"type": "moon"}}]}, "tools[0].environment.type"),
        (
            {"tools": [{"type": "shell", "environment": {"type": "container_reference"}}]},
            "tools[0].environment.container_id",
        ),
        ({"tools": [shell(skills=[{"type": "moon"}])]}, "tools[0].environment.skills[0].type"),
        ({"tools": [shell(memory_limit="9g")]}, "tools[0].environment.memory_limit"),
        (
            {"tools": [shell(memory_limit="1g"), {**CODE_TOOL, "container": {"type": "auto", "memory_limit": "4g"}}]},
            "tools",
        ),
        (
            {"tools": [shell(network_policy={"type": "allowlist", "allowed_domains": ["a.example"]}), CODE_TOOL]},
            "tools",
        ),
        ({"tools": [{**shell(), "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tools": [shell(), {**FUNCTION, "name": "shell"}]}, "tools"),
        ({"truncation": "foo"}, "truncation"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "answer"}}}, "text.format.schema"),
        ({"context_management": [{"type": "other"}]}, "context_management[0].type"),
        ({"context_management": [{"type": "compaction"}]}, "context_management[0].compact_threshold"),
        (
            {"context_management": [{"type": "compaction", "compact_threshold": 10}]},
            "context_management[0].compact_threshold",
        ),
        ({"context_management": "auto"}, "context_management"),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}, "input[0].encrypted_content"),
        (
            {"input": [{"type": "compaction", "encrypted_content": "WzFd"}]},
            "input[0].encrypted_content",
        ),
        ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_field_that_cannot_be_used_is_named(new_gateway: NewGateway, body: dict[str, Any], param: str | None) -> None:
    answer = post(new_gateway({"m": []}), **body)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


def test_what_is_unusual_or_unknown_is_taken(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    asked = {
        "model": "m",
        "input": "\ud800 half",
        "temperature": 0,
        "tools": [],
        "include": [],
        "stream_options": {"include_obfuscation": False},
        "of_tomorrow": {"a": 1},
    }
    body = httpx.post(f"{gateway.url}/v1/responses", content=json.dumps(asked).encode()).json()
    assert body["status"] == "completed"
    assert gateway.upstream.requests[0]["messages"][-1]["content"] == "? half"


def test_halves_of_characters_are_replaced_in_place_however_deep() -> None:
    deep: Any = ["\ud800"]
    for _ in range(100_000):
        deep = [deep]
    inner = scrubbed(deep)
    assert inner is deep
    while isinstance(inner[0], list):
        inner = inner[0]
    assert inner == ["?"]
    assert scrubbed({"a\ud800": {"b": "é\udfff"}, "c": 1}) == {"a?": {"b": "é?"}, "c": 1}
    assert scrubbed("\ud800") == "?"
    while deep and isinstance(deep[0], list):  # taken apart from outside: freeing it at once would go as deep
        deep = deep.pop()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-8-sig"])
def test_halves_of_characters_are_found_in_every_encoding(new_gateway: NewGateway, encoding: str) -> None:
    gateway = new_gateway({"m": ["Ok.", "Ok."]})
    for text in ('"\\ud800 é"', '"\ud800 é"'):
        body = f'{{"model": "m", "input": {text}}}'.encode(encoding, "surrogatepass")
        assert httpx.post(f"{gateway.url}/v1/responses", content=body).status_code == 200
    assert [asked["messages"][-1]["content"] for asked in gateway.upstream.requests] == ["? é"] * 2


class Outer(RequestModel):
    flag: bool = False
    number: float = 0
    needed: Needed


def test_a_field_of_the_wrong_type_is_named() -> None:
    for given in ({"flag": "yes"}, {"number": True}, {}):
        with pytest.raises(ApiError) as refused:
            read(Outer, given, "outer")
        assert refused.value.param == f"outer.{next(iter(given), 'needed')}"


def test_a_new_container_is_given_so_many_files(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = upload(gateway.client(), 10).id
    assert gateway.client().containers.create(name="a", file_ids=[id_] * MAX_FILES).name == "a"
    auto = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [id_] * (MAX_FILES + 1)}}
    assert post(gateway, tools=[auto]).json()["error"]["param"] == "tools[0].container.file_ids"
    assert refused(lambda: gateway.client().containers.create(name="a", file_ids=[id_] * (MAX_FILES + 1)))[0] == 400
