"""Endpoints that are passed on, and those that are not."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import BESIDE_V1, ENDPOINTS, GatewayConfig
from agent_tools.gateway.responses.token_count import MAX_ANSWER
from tests.gateway.asking import CODE_TOOL, FUNCTION, KEYS, shell
from tests.gateway.conftest import New, NewGateway
from tests.recorder import Answer, asked

STORED = ("batches", "fine_tuning/jobs", "vector_stores", "assistants", "threads", "evals")
STORED += ("load_lora_adapter", "sleep", "wake_up", "reset_prefix_cache", "admin/keys", "organization/admin_api_keys")


@pytest.mark.parametrize("name", ENDPOINTS)
def test_it_is_passed_on_as_it_is(new: New, name: str) -> None:
    gateway, upstream = new()
    upstream.answer = lambda seen: Answer(b"\x00\x01audio", "audio/mpeg", 201)
    sent = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n\xff\xfe\r\n--b--'
    kind = "multipart/form-data; boundary=b"
    answer = httpx.post(f"{gateway.url}/v1/{name}?a=b", content=sent, headers={"Content-Type": kind, "Cookie": "a=b"})
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (201, b"\x00\x01audio", "audio/mpeg")
    (seen,) = upstream.seen
    assert seen.target == (f"/{name}" if name in BESIDE_V1 else f"/v1/{name}")
    assert (seen.body, seen.headers["content-type"]) == (sent, kind)
    assert seen.headers["authorization"] == "Bearer operators-key"
    assert "cookie" not in seen.headers


def test_a_redirect_of_the_upstream_is_not_passed_on(new: New) -> None:
    gateway, upstream = new()
    upstream.answer = lambda seen: Answer(b"", status=307, headers={"Location": "/v2/embeddings?key=secret"})
    answer = httpx.post(f"{gateway.url}/v1/embeddings", json={})
    address = f"{upstream.base_url.removesuffix('/v1')}/v2/embeddings"
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        502,
        f"The upstream redirects to {address}: the gateway's --upstream has to be its final address.",
    )


def test_what_holds_stored_things_is_not_passed_on(new: New) -> None:
    gateway, upstream = new()
    for name in STORED:
        for method in ("GET", "POST", "DELETE"):
            assert httpx.request(method, f"{gateway.url}/v1/{name}").status_code == 404
    for path in (b"/v1/embeddings%0A", b"/v1/embeddings/", b"/v1/embeddings/../files", b"/v1/embeddings%2F..%2Ffiles"):
        assert asked(gateway.url, path, method=b"POST")[9:12] == b"404"
    assert upstream.seen == []


def test_an_operator_may_offer_fewer_of_them(new: New) -> None:
    gateway, _ = new(endpoints=("embeddings",))
    assert httpx.post(f"{gateway.url}/v1/embeddings", json={}).status_code == 200
    assert httpx.post(f"{gateway.url}/v1/completions", json={}).status_code == 404
    with pytest.raises(InvalidParams, match="'files', which is not passed on"):
        GatewayConfig("http://u/v1", endpoints="embeddings, files")


def test_a_key_is_needed_for_them(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    assert httpx.post(f"{gateway.url}/v1/embeddings", json={}).status_code == 401


def test_messages_of_anthropics_api_are_passed_on(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    kinds = ("message_start", "message_stop")
    events = "".join(f'event: {kind}\ndata: {{"type": "{kind}"}}\n\n' for kind in kinds).encode()
    theirs = {
        "anthropic-ratelimit-requests-remaining": "7",
        "request-id": "req_theirs",
        "anthropic-organization-id": "o",
    }
    upstream.answer = lambda seen: Answer(events, "text/event-stream", headers=theirs)
    given = {"x-api-key": KEYS[0], "anthropic-version": "2023-06-01", "anthropic-beta": "b1,b2", "x-app": "cli"}
    body = {"model": "claude", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi."}]}
    answer = httpx.post(f"{gateway.url}/v1/messages?beta=true&a=b", json=body, headers=given)
    assert (answer.content, answer.headers["content-type"]) == (events, "text/event-stream")
    assert answer.headers["anthropic-ratelimit-requests-remaining"] == "7"
    assert answer.headers["x-upstream-request-id"] == "req_theirs"
    assert "anthropic-organization-id" not in answer.headers
    (seen,) = upstream.seen
    assert (seen.target, seen.json) == ("/v1/messages?beta=true", body)
    sent = {name: seen.headers.get(name) for name in ("x-api-key", "authorization", *given)}
    assert sent == {**given, "x-api-key": "operators-key", "authorization": "Bearer operators-key", "x-app": None}
    counted = httpx.post(f"{gateway.url}/v1/messages/count_tokens", json=body, headers=given)
    assert (counted.status_code, upstream.seen[-1].target) == (200, "/v1/messages/count_tokens")
    assert httpx.post(f"{gateway.url}/v1/messages/batches", json=body, headers=given).status_code == 404
    assert len(upstream.seen) == 2


def test_the_code_execution_of_anthropics_api_is_refused_by_name(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    tool = {"type": "code_execution_20250825", "name": "code_execution"}
    body = {"model": "claude", "max_tokens": 9, "messages": [], "tools": [{"name": "code_execution"}, tool]}
    given = {"x-api-key": KEYS[0], "anthropic-version": "2023-06-01"}
    refused = httpx.post(f"{gateway.url}/v1/messages", json=body, headers=given)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "code_execution_20250825" in refused.json()["error"]["message"]
    body["tools"] = [{"name": "code_execution", "input_schema": {}}]
    assert httpx.post(f"{gateway.url}/v1/messages", json=body, headers=given).status_code == 200
    assert httpx.post(f"{gateway.url}/v1/messages", content=b"code_execution", headers=given).status_code == 200
    assert len(upstream.seen) == 2


def test_failures_of_messages_have_anthropics_shape(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS, max_body_bytes=100, max_requests_per_minute=6)
    url, key = f"{gateway.url}/v1/messages", {"x-api-key": KEYS[0]}
    theirs = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: Field required"}}
    upstream.answer = lambda seen: Answer(json.dumps(theirs).encode(), status=400)
    assert httpx.post(url, json={}, headers=key).json() == theirs
    upstream.answer = lambda seen: Answer(status=401)
    answers = [httpx.post(url, json={}), httpx.get(url, headers=key), httpx.post(url, content=b"x" * 101, headers=key)]
    answers += [httpx.post(url, json={}, headers=key)]
    answers += [httpx.post(url, json={}, headers=key) for _ in range(3)][-1:]
    errors = [(answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) for answer in answers]
    assert errors == [
        (401, "error", "authentication_error"),
        (405, "error", "invalid_request_error"),
        (413, "error", "request_too_large"),
        (502, "error", "api_error"),
        (429, "error", "rate_limit_error"),
    ]
    assert set(httpx.post(f"{gateway.url}/v1/embeddings", json={}).json()) == {"error"}


LONG = "word " * 400


def test_the_upstream_counts_tokens_where_it_can(new: New) -> None:
    gateway, upstream = new()
    upstream.answer = lambda seen: Answer(b'{"count": 17, "max_model_len": 100, "tokens": [1, 2]}')
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any")
    counted = client.responses.input_tokens.count(model="m", input="Hi.", instructions="Be brief.", tools=[CODE_TOOL])  # type: ignore[list-item]
    client.close()
    assert (counted.input_tokens, counted.object, counted.model_extra) == (
        17,
        "response.input_tokens",
        {"source": "upstream"},
    )
    (seen,) = upstream.seen
    assert seen.target == "/tokenize"
    assert [message["role"] for message in seen.json["messages"]] == ["system", "user"]
    assert [tool["function"]["name"] for tool in seen.json["tools"]] == ["python"]
    assert gateway.client().containers.list().data == [], "counting makes nothing"


@pytest.mark.parametrize(
    "answer",
    [
        *(
            Answer(status=404),
            Answer(b"{}"),
            Answer(b'{"count": -1}'),
            Answer(b'{"count": true}'),
            Answer(b"[" * 100_000),
        ),
        Answer(b'{"count": 3, "tokens": "%s"}' % (b"1," * (MAX_ANSWER // 2))),
    ],
    ids=lambda answer: f"{answer.status}-{answer.body[:12]!r}",
)
def test_else_it_is_an_estimate_and_says_so(new: New, answer: Answer) -> None:
    gateway, upstream = new()
    upstream.answer = lambda seen: answer

    def count(**body: object) -> int:
        found = httpx.post(f"{gateway.url}/v1/responses/input_tokens", json={"model": "m", **body}).json()
        assert (found["object"], found["source"]) == ("response.input_tokens", "estimate")
        return int(found["input_tokens"])

    short, long = count(input="Hi."), count(input=LONG)
    assert 0 < short < 20
    assert 400 < long < 700
    assert count(input=LONG, tools=[CODE_TOOL, shell(), FUNCTION]) > long
    assert count() == 0
