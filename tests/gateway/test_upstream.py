"""Requests to the upstream: who may ask, what is refused and how, and what is counted."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from tests.gateway.asking import CODE_TOOL, EXECUTE, WEATHER, until
from tests.gateway.conftest import New, NewGateway
from tests.recorder import Answer, Seen, asked, events


def test_a_clients_own_key_is_passed_on_where_there_are_no_others(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    gateway.client("sk-of-the-client").responses.create(model="m", input="Hi.")
    assert gateway.upstream.headers[0]["authorization"] == "Bearer sk-of-the-client"


PLAIN = {
    b"/v1/models": "/v1/models",
    b"/v1/models?admin=1": "/v1/models",
    b"/v1/models/gpt-4.1": "/v1/models/gpt-4.1",
    b"/v1/models/gpt-4.1?admin=1&a=../b": "/v1/models/gpt-4.1",
    b"/v1/models/org/model:tag": "/v1/models/org%2Fmodel%3Atag",
    b"/v1/models/org%2fmodel%3Atag": "/v1/models/org%2Fmodel%3Atag",
    b"/v1/models/ft:gpt-4o:org::a_b+c@2": "/v1/models/ft%3Agpt-4o%3Aorg%3A%3Aa_b%2Bc%402",
    b"/v1/models/..model": "/v1/models/..model",
}
NOT_PLAIN = (
    *(b"..", b".", b"../files", b"../../internal/admin", b"a/../../files", b"a/./b", b"..\\files", b"a;/../files"),
    *(b"%2e%2e", b"%2e%2e/files", b".%2e/files", b"..%2ffiles", b"%2e%2e%2ffiles", b"..%5cfiles", b"a%2f..%2ffiles"),
    *(b"%252e%252e/files", b"%252e%252e%252ffiles", b"..%252ffiles", b"..%25252ffiles", b"..%c0%affiles"),
    *(b"", b"/", b"//", b"/files", b"%2ffiles", b"a/", b"a%2f", b"a//b", b"/evil.example/x"),
    *(b"a;b", b"..;/files", b"a%3bb", b"a%3fadmin=1", b"a%23b", b"a#b", b"a&b", b"a%26b=c", b"a=b", b"a%20b"),
    *(b"%00", b"a%00", b"..%00/files", b"a%0d%0aX-Evil:%201", b"a%0a", b"a%09", b"%7f", b"%ff", b"%c3%a9", b"a*"),
    *(b"http://evil.example/", b"http:%2f%2fevil.example%2f", b"a\\b", b"~root", b"%", b"%zz", b"a" * 257),
)
ELSEWHERE = (
    *(b"/v1/../v1/models", b"/v1/chat/../files", b"/v1/%2e%2e/metrics", b"/v1/files/..%2f..%2fmodels", b"//v1/models"),
    *(b"/v1/models/../../health/x", b"http://evil.example/v1/models", b"/v1/chat/completions/../../files"),
)


def test_a_plain_model_is_asked_for_as_one_segment_without_a_query(new: New) -> None:
    gateway, upstream = new()
    for target in PLAIN:
        assert asked(gateway.url, target).startswith(b"HTTP/1.1 200"), target
    assert [seen.target for seen in upstream.seen] == list(PLAIN.values())
    for seen in upstream.seen:
        assert (seen.method, seen.body) == ("GET", b"")
        assert seen.headers["authorization"] == "Bearer operators-key"


def test_what_is_no_plain_model_is_not_found_and_reaches_no_upstream(new: New) -> None:
    gateway, upstream = new()
    answers = {rest: asked(gateway.url, b"/v1/models/" + rest)[:12] for rest in NOT_PLAIN}
    assert [seen.target for seen in upstream.seen] == []
    assert {rest: answer for rest, answer in answers.items() if answer != b"HTTP/1.1 404"} == {}


def test_a_model_with_a_name_of_no_models_length_is_not_found(new: New) -> None:
    gateway, upstream = new()
    chat = {"messages": [{"role": "user", "content": "Hi."}], "tools": [EXECUTE]}
    for path, body in (("responses", {"input": "Hi."}), ("chat/completions", chat)):
        answer = httpx.post(f"{gateway.url}/v1/{path}", json={"model": "m" * 257, **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert upstream.seen == []


def test_no_other_path_reaches_the_upstream(new: New) -> None:
    gateway, upstream = new()
    answers = {target: asked(gateway.url, target)[:12] for target in ELSEWHERE}
    assert set(answers.values()) == {b"HTTP/1.1 404"}
    assert upstream.seen == []


OPTIONS = {
    "extra_headers": {"X-Injected": "1", "Authorization": "Bearer mine", "Host": "other.internal", "Cookie": "a=b"},
    "extra_query": {"api-version": "evil"},
    "extra_body": {"model": "other", "injected": True, "messages": [], "stream": False},
    "timeout": 1e9,
    "max_retries": 99,
    "http_client": {"a": 1},
    "default_headers": {"X-Injected": "2"},
    "idempotency_key": "a",
    "options": {"headers": {"X-Injected": "3"}},
    "self": 1,
    "of_tomorrow": {"a": [1]},
}


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
@pytest.mark.parametrize("is_routed", [True, False])
def test_a_clients_fields_travel_in_the_body_only(new: New, path: str, api: str, is_routed: bool) -> None:
    gateway, upstream = new(upstream_api=api)
    chat = {"messages": [{"role": "user", "content": "Hi."}], "tools": [EXECUTE if is_routed else WEATHER]}
    body = chat if "chat" in path else {"input": "Hi.", "tools": [CODE_TOOL] if is_routed else []}
    sent = {"model": "m", "temperature": 0.5, **body, **OPTIONS}
    headers = {"OpenAI-Organization": "org", "OpenAI-Project": "proj", "Cookie": "c=d", "X-Forwarded-For": "1.2.3.4"}
    answer = httpx.post(f"{gateway.url}/v1/{path}?a=b", json=sent, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    (seen,) = upstream.seen
    is_passed_on = "chat" in path and not is_routed
    assert seen.target == ("/v1/chat/completions" if is_passed_on or api == "chat" else "/v1/responses")
    assert seen.headers["authorization"] == "Bearer operators-key"
    assert seen.headers["host"] in upstream.base_url
    assert not {"x-injected", "cookie", "openai-organization", "openai-project", "x-forwarded-for"} & set(seen.headers)
    assert (seen.json["model"], seen.json["temperature"]) == ("m", 0.5)
    assert is_passed_on or seen.json["stream"] is True
    assert is_passed_on or "injected" not in seen.json


def test_a_clients_unknown_fields_reach_the_upstream_as_they_are(new: New) -> None:
    gateway, upstream = new()
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": [EXECUTE]}
    sent = {**body, "top_k": 5, "of_tomorrow": {"a": [1]}, "seed": None, "extra_body": {"injected": 1}}
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=sent, timeout=60).status_code == 200
    found = upstream.seen[0].json
    assert (found["top_k"], found["of_tomorrow"], found["extra_body"]) == (5, {"a": [1]}, {"injected": 1})
    assert "seed" not in found


def test_a_client_chooses_an_organization_only_for_a_key_of_its_own(new: New) -> None:
    gateway, upstream = new(upstream_key="")
    asked(gateway.url, b"/v1/models", b"Authorization: Bearer mine", b"OpenAI-Organization: org", b"OpenAI-Project: p")
    assert upstream.seen[0].headers["authorization"] == "Bearer mine"
    assert upstream.seen[0].headers["openai-organization"] == "org"
    assert upstream.seen[0].headers["openai-project"] == "p"


@pytest.mark.parametrize("path", ["models", "models/m", "chat/completions"])
def test_only_known_headers_of_the_upstream_come_back(new: New, path: str) -> None:
    gateway, upstream = new()
    kept = {
        "Retry-After": "7",
        "X-RateLimit-Remaining-Tokens": "9",
        "RateLimit-Policy": "10;w=1",
        "Retry-After-Ms": "7",
    }
    dropped = (
        *(
            "Access-Control-Allow-Origin",
            "Access-Control-Allow-Credentials",
            "Set-Cookie",
            "Server",
            "Via",
            "Keep-Alive",
        ),
        *("Alt-Svc", "X-Powered-By", "Location", "WWW-Authenticate", "Strict-Transport-Security", "Refresh", "Link"),
        *("Content-Security-Policy", "Age", "X-Accel-Redirect", "Clear-Site-Data", "X-Request-Idle"),
    )
    headers = {**kept, **dict.fromkeys(dropped, "http://evil.example"), "X-Request-Id": "req-of-the-upstream"}
    said = Answer(b'{"a":1}', "application/json", 429, headers)
    upstream.answer = lambda seen: said
    answer = httpx.request("POST" if "chat" in path else "GET", f"{gateway.url}/v1/{path}", content=b"{}")
    assert (answer.status_code, answer.content) == (429, said.body)
    assert answer.headers["content-type"] == "application/json"
    assert {name: answer.headers[name] for name in kept} == kept
    assert answer.headers["x-upstream-request-id"] == "req-of-the-upstream"
    assert answer.headers.get_list("x-request-id") == [answer.headers["x-request-id"]]
    assert answer.headers["x-request-id"].startswith("req_")
    assert [name for name in dropped if name in answer.headers] == []


def test_an_answer_that_is_not_http_is_the_upstreams_failure(new: New) -> None:
    gateway, upstream = new()
    upstream.answer = lambda seen: Answer(status=777, headers={"X-RateLimit-Note": "\xff"})
    answer = httpx.get(f"{gateway.url}/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
    upstream.answer = lambda seen: Answer(b'{"a":1}', headers={"X-RateLimit-Note": "caf\xe9", "Retry-After": "1"})
    assert httpx.get(f"{gateway.url}/v1/models").headers["retry-after"] == "1"


def test_an_answer_of_the_upstream_that_is_too_large_ends_the_response(new: New) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "never_offered", "arguments": "a" * 20_000}}
    chat = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    item = {"type": "function_call", "call_id": "c", "name": "never_offered", "arguments": ""}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    delta = {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "c", "delta": "a" * 20_000}
    for api, said in (("chat", [chat] * 10), ("responses", [added, *[delta] * 10])):
        gateway, upstream = new(upstream_api=api, max_reply_bytes=100_000)
        upstream.answer = lambda seen, said=said: events(*said)
        asked = {"model": "m", "input": "Hi.", "tools": [CODE_TOOL]}
        error = httpx.post(f"{gateway.url}/v1/responses", json=asked, timeout=60).json()["error"]
        assert (error["code"], "more than 100,000 bytes" in error["message"]) == ("upstream_error", True), error
    assert len(upstream.seen) == 2


@pytest.mark.parametrize("status", [304, 999])
def test_a_status_that_no_answer_has_is_a_bad_gateway(new: New, status: int) -> None:
    gateway, upstream = new()
    upstream.answer = lambda _: Answer(status=status, body=b"")
    answer = httpx.post(f"{gateway.url}/v1/responses", json={"model": "m", "input": "x"}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")


CUT = {
    "cut": Answer(body=b'{"a": 1}', headers={"Content-Length": "500", "Connection": "close"}),
    "no gzip": Answer(body=b"hello", headers={"Content-Encoding": "gzip"}),
    "a stream that is cut": Answer(
        body=b"data: {}\n\n", kind="text/event-stream", headers={"Content-Length": "500", "Connection": "close"}
    ),
}


@pytest.mark.parametrize("said", CUT.values(), ids=CUT)
def test_an_answer_that_breaks_off_is_seen_to(new: New, said: Answer) -> None:
    gateway, upstream = new()
    upstream.answer = lambda _: said
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)
    counted = b'agent_tools_requests_total{method="POST",route="create_completion",status="200"} 1.0'
    until(lambda: counted in gateway.services.metrics.text())


@pytest.mark.parametrize("path", ["responses", "responses/compact", "responses/input_tokens", "chat/completions"])
def test_a_key_that_no_header_holds_is_refused(new_gateway: NewGateway, path: str) -> None:
    gateway = new_gateway({})
    body = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}], "tools": [CODE_TOOL]}
    headers = [(b"Authorization", "Bearer k\xe9y-long".encode("latin-1"))]
    answer = httpx.post(f"{gateway.url}/v1/{path}", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert gateway.app.state.jobs.active == 0


@pytest.mark.parametrize("is_routed", [True, False])
def test_who_has_left_is_asked_for_once(new: New, is_routed: bool) -> None:
    gateway, upstream = new()
    has_left, is_done = threading.Event(), threading.Event()

    def failing(_: Seen) -> Answer:
        has_left.wait(30)
        is_done.set()
        return Answer(status=500, body=b"{}")

    upstream.answer = failing
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": [EXECUTE] if is_routed else []}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=1.0)
    until(lambda: gateway.app.state.jobs.active == 0)
    has_left.set()
    assert is_done.wait(30)
    time.sleep(1.5)  # the client library tries again after half a second, and after one
    assert len(upstream.seen) == 1


def test_parameters_that_are_no_schema_are_refused(new: New) -> None:
    gateway, upstream = new()
    function = {**EXECUTE["function"], "parameters": [None]}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    tools = [{"type": "function", "function": function}]
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json={**body, "tools": tools}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].function.parameters")
    assert upstream.seen == []
