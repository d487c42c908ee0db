"""Keys and strangers: who may ask, and what each owner sees."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import pytest
from openai import BadRequestError, NotFoundError

from agent_tools.testing import ScriptedReply
from tests.gateway.asking import EVENTS, code
from tests.gateway.conftest import NewGateway

KEYS = ("first-key-123", "second-key-123")


def test_keys_are_needed_and_see_only_what_is_theirs(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda request: ScriptedReply(text="Ok.")}, api_keys=KEYS, upstream_key="up")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEYS[0]}"}):
        refused = httpx.get(f"{gateway.url}/v1/containers", headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    mine, theirs = gateway.client(KEYS[0]), gateway.client(KEYS[1])
    container = mine.containers.create(name="mine")
    file = mine.files.create(file=("a.txt", b"a"), purpose="user_data")
    inside = mine.containers.files.create(container.id, file=("a.txt", b"a"))
    response = mine.responses.create(model="m", input="Hi.")
    mine.responses.retrieve(response.id)
    assert [each.id for each in mine.containers.list()] == [container.id]
    assert list(theirs.containers.list()) == []
    assert list(theirs.files.list()) == []
    for use in (
        lambda: theirs.containers.retrieve(container.id),
        lambda: theirs.containers.files.list(container.id),
        lambda: theirs.containers.delete(container.id),
        lambda: theirs.containers.files.create(container.id, file=("b.txt", b"b")),
        lambda: theirs.containers.files.retrieve(inside.id, container_id=container.id),
        lambda: theirs.containers.files.content.retrieve(inside.id, container_id=container.id),
        lambda: theirs.containers.files.delete(inside.id, container_id=container.id),
        lambda: theirs.containers.create(name="b", file_ids=[file.id]),
        lambda: theirs.files.content(file.id),
        lambda: theirs.responses.create(model="m", input="Hi.", tools=code_tool(container.id)),
        lambda: theirs.responses.create(
            model="m", input="Hi.", tools=code_tool({"type": "auto", "file_ids": [file.id]})
        ),
        lambda: theirs.responses.create(model="m", input=cast("Any", with_file(file.id))),
        lambda: theirs.responses.cancel(response.id),
        lambda: list(theirs.responses.input_items.list(response.id)),
        lambda: theirs.files.retrieve(file.id),
        lambda: theirs.files.delete(file.id),
        lambda: theirs.responses.retrieve(response.id),
        lambda: theirs.responses.delete(response.id),
    ):
        with pytest.raises(NotFoundError):
            use()
    with pytest.raises(BadRequestError):
        theirs.responses.create(model="m", input="Hi.", previous_response_id=response.id)
    assert len(gateway.upstream.requests) == 1
    assert gateway.upstream.headers[0]["authorization"] == "Bearer up"


def test_a_call_of_another_key_is_not_told_to_the_model(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print('se' + 'cret')"), "Ok.", "Ok."]}, api_keys=KEYS)
    asked: Any = {"model": "m", "input": "Go.", "tools": code_tool({"type": "auto"})}
    (call, _) = gateway.client(KEYS[0]).responses.create(**asked).to_dict()["output"]  # type: ignore[misc]
    body = gateway.client(KEYS[1]).responses.create(**{**asked, "input": [call, {"role": "user", "content": "?"}]})
    assert "secret" in json.dumps(gateway.upstream.requests[1]["messages"])
    assert "secret" not in json.dumps(gateway.upstream.requests[2]["messages"])
    assert body.status == "completed"


def code_tool(container: Any) -> Any:
    return [{"type": "code_interpreter", "container": container}]


def with_file(id_: str) -> Any:
    return [{"role": "user", "content": [{"type": "input_file", "file_id": id_}]}]


FOREIGN = [
    *({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Host": "["}, {"Host": ""}),
    *({"Host": "localhost:1@evil.example"}, {"Host": "127.0.0.1:80.evil.example"}, {"Host": "evil@localhost"}),
    *({"Origin": "http://127.0.0.1:x.evil.example"}, {"Origin": "http://localhost:80.evil.example:80"}),
    *({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"}),
    *({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "of-tomorrow"}),
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
]
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
PUBLIC = ("/", "/page/page.js", "/health", "/ready", "/metrics", "/nothing")


def test_without_keys_no_foreign_page_is_answered(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    paths = [("GET", path) for path in ("/v1/models", "/v1/containers", "/page/state", *PUBLIC)]
    paths += [("POST", path) for path in ("/page/run", "/v1/responses", "/v1/containers", "/v1/chat/completions")]
    with httpx.Client(base_url=gateway.url) as client:
        for headers in FOREIGN:
            answers = {path: client.request(*path, headers=headers) for path in paths}
            assert {path: each.status_code for path, each in answers.items() if each.status_code != 403} == {}, headers
            assert {each.json()["error"]["code"] for each in answers.values()} == {"foreign_origin"}
    events = gateway.services.metrics.registry.get_sample_value(EVENTS, {"event": "foreign_origin"})
    assert events == len(FOREIGN) * len(paths)
    for headers in ({"Origin": gateway.url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
        assert httpx.get(f"{gateway.url}/v1/models", headers=headers).status_code == 200


def test_the_page_may_be_opened_by_a_link_of_another_site_and_nothing_else_may(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    assert httpx.get(f"{gateway.url}/", headers=LINK).status_code == 200
    assert httpx.get(f"{gateway.url}/v1/containers", headers=LINK).status_code == 403
    assert httpx.get(f"{gateway.url}/page/state", headers=LINK).status_code == 403
    assert httpx.post(f"{gateway.url}/", headers=LINK).status_code == 403


def test_with_keys_what_nobody_owns_is_answered_by_any_name(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, upstream_key="up")
    with httpx.Client(base_url=gateway.url) as client:
        for path in ("/health", "/ready", "/metrics", "/"):
            for headers in ({"Host": "10.1.2.3:8080"}, {"Host": "gateway.example"}, {"Sec-Fetch-Site": "cross-site"}):
                assert client.get(path, headers=headers).status_code == 200, (path, headers)


@pytest.mark.parametrize("name", ["api-key", "x-api-key"])
def test_a_key_may_come_where_other_services_clients_put_it(new_gateway: NewGateway, name: str) -> None:
    gateway = new_gateway({}, api_keys=KEYS)

    def status(**headers: str) -> int:
        sent = {each.replace("_", "-"): value for each, value in headers.items()}
        return httpx.get(f"{gateway.url}/v1/containers", headers=sent).status_code

    key = name.replace("-", "_")
    assert status(**{key: KEYS[0]}) == 200
    assert status(**{key: "wrong-key-123"}) == status(**{key: ""}) == status(**{key: f"Bearer {KEYS[0]}"}) == 401
    assert status(authorization="Bearer wrong-key-123", **{key: KEYS[0]}) == 401, "the usual place is asked first"


def test_a_clients_own_key_is_passed_on_from_wherever_it_was(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers={"api-key": "sk-of-the-client"})
    assert gateway.upstream.headers[0]["authorization"] == "Bearer sk-of-the-client"
    assert "api-key" not in gateway.upstream.headers[0]
