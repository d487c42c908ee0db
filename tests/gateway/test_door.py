"""Who may ask, what is refused and how, and what is counted."""

from __future__ import annotations

import json
import logging
import re
import traceback
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from openai import BadRequestError, NotFoundError
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig, read_config
from agent_tools.gateway.serve import problems, serve
from agent_tools.gateway.tracing import Tracer
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import NewGateway
from tests.gateway.test_chat import ask, run
from tests.gateway.test_responses import INCLUDE, code, post, stream

KEYS = ("first-key-123", "second-key-123")


def test_33_what_people_and_code_say_is_nowhere_but_in_the_answer(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    gateway = new_gateway(
        {
            "m": [code("print('canary' + '-output')  # canary-code"), ScriptedReply(text="canary-answer"), code("1")],
            "chat": [*[run("print('canary' + '-output')"), "canary-answer"] * 2],
            "bad": lambda _: ScriptedReply(calls=[ScriptedCall("python", '{"canary": ')], cut_after=3),
        }
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("openai").setLevel(logging.WARNING)
    answer = post(gateway, input="canary-prompt", include=INCLUDE)
    assert "canary-output" in answer.text
    post(gateway, input="canary-prompt")  # the script is used up: the upstream fails
    said = [{"role": "user", "content": "canary-prompt"}]
    for is_streamed in (False, True):
        ask(gateway, model="chat", messages=said, stream=is_streamed)
        post(gateway, model="bad", input="canary-prompt", instructions="canary", stream=is_streamed)
    seen = httpx.get(f"{gateway.url}/metrics").text + capfd.readouterr().err
    seen += "\n".join(record.getMessage() + str(record.exc_info) for record in caplog.records)
    assert "canary" not in seen
    assert 'agent_tools_tool_calls_total{status="completed"}' in seen


def test_33_spans_tell_of_turns_rounds_and_calls_and_of_nothing_said(new_gateway: NewGateway) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    gateway = new_gateway({"m": [code("1/0  # canary"), ScriptedReply(text="canary")]}, tracer=Tracer(provider))
    post(gateway, input="canary")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["execute_tool", "round", "round", "turn"]
    assert {span.parent.span_id for span in spans[:-1] if span.parent} == {spans[-1].context.span_id}
    assert spans[0].attributes == {"tool.ok": False}
    assert spans[1].attributes is not None
    assert spans[1].attributes["gen_ai.usage.input_tokens"] == 10
    assert "canary" not in "".join(span.to_json() for span in spans)


def test_34_keys_are_needed_and_see_only_what_is_theirs(new_gateway: NewGateway) -> None:
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
        lambda: theirs.responses.create(model="m", input=cast(Any, with_file(file.id))),
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


def test_34_a_call_of_another_key_is_not_told_to_the_model(new_gateway: NewGateway) -> None:
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


def test_a_clients_own_key_is_passed_on_where_there_are_no_others(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    gateway.client("sk-of-the-client").responses.create(model="m", input="Hi.")
    assert gateway.upstream.headers[0]["authorization"] == "Bearer sk-of-the-client"


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
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "manual"}}]}, "tools[0].container.type"),
        ({"tools": [{"type": "code_interpreter", "container": "c" * 65}]}, "tools[0].container"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_32_what_cannot_be_used_is_refused_by_name(
    new_gateway: NewGateway, body: dict[str, Any], param: str | None
) -> None:
    answer = post(new_gateway({"m": []}), **body)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


def test_32_what_is_unusual_or_unknown_is_taken(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    asked = {
        "model": "m",
        "input": "\ud800 half",
        "temperature": 0,
        "tools": [],
        "include": [],
        "of_tomorrow": {"a": 1},
    }
    body = httpx.post(f"{gateway.url}/v1/responses", content=json.dumps(asked).encode()).json()
    assert body["status"] == "completed"
    assert gateway.upstream.requests[0]["messages"][-1]["content"] == "? half"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PUT", "/v1/responses", 405), ("GET", "/v1/responses/resp_none", 404)],
)
def test_failures_have_the_apis_shape(new_gateway: NewGateway, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, f"{new_gateway({}).url}{path}")
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_body_that_is_no_json_or_too_large_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_body_bytes=1000)
    assert httpx.post(f"{gateway.url}/v1/responses", content=b"{").status_code == 400
    assert httpx.post(f"{gateway.url}/v1/responses", content=b"[1]").status_code == 400
    assert httpx.post(f"{gateway.url}/v1/responses", content=b"x" * 2000).status_code == 413


def test_it_tells_whether_it_is_ready(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    assert httpx.get(f"{gateway.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{gateway.url}/ready").json() == {"status": "ok", "engine": True, "upstream": True}
    lonely = new_gateway({}, upstream="http://127.0.0.1:9/v1", data_dir=gateway.services.config.data_dir / "b")
    answer = httpx.get(f"{lonely.url}/ready")
    assert (answer.status_code, answer.json()["upstream"]) == (503, False)
    assert httpx.get(f"{lonely.url}/v1/models").status_code == 502


def test_the_page_shows_what_runs_and_tries_code(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    page = httpx.get(f"{gateway.url}/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert httpx.get(f"{gateway.url}{path}").status_code == 200, path
    answer = httpx.post(f"{gateway.url}/page/run", json={"code": "print('hello'); 6 * 7"}, timeout=60)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [event["kind"] for event in events] == ["started", "stdout", "result", "done"]
    assert events[2]["text"] == "42"
    state = httpx.get(f"{gateway.url}/page/state").json()
    assert [each["id"] for each in state["containers"]] == [events[0]["container"]]
    assert (state["sandboxes"], state["max_sandboxes"]) == (1, 8)
    assert httpx.post(f"{gateway.url}/page/stop", json={"container": events[0]["container"]}).json() == {"stopped": 0}


def test_the_page_asks_for_a_key_where_one_is_needed_and_is_refused_without(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-the-test",))
    assert '<body class="locked">' in httpx.get(f"{gateway.url}/").text
    assert httpx.get(f"{gateway.url}/page/state").status_code == 401
    for path in ("/page/run", "/page/stop"):
        assert httpx.post(f"{gateway.url}{path}", json={"container": "c"}).status_code == 401


def test_the_page_cannot_stop_what_runs_in_anothers_container(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-mine", "key-of-theirs"))
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("key-of-mine", "key-of-theirs"))
    id_ = httpx.post(f"{gateway.url}/v1/containers", headers=mine, json={"name": "c"}).json()["id"]
    body = {"container": id_}
    assert httpx.post(f"{gateway.url}/page/stop", headers=theirs, json=body).status_code == 404
    assert httpx.post(f"{gateway.url}/page/stop", headers=mine, json=body).json() == {"stopped": 0}


def test_settings_are_read_from_text_and_secrets_are_not_shown(work_dir: Path) -> None:
    config = read_config(
        {
            "upstream": "http://u/v1",
            "api_keys": "secret-key-1, secret-key-2",
            "port": "81",
            "timeout": "2.5",
            "data_dir": str(work_dir),
            "memory": "4g",
            "upstream_key": "secret-up",
            "database": "postgresql://secret@h/d",
        }
    )
    assert (config.port, config.timeout, config.memory) == (81, 2.5, "4g")
    assert config.api_keys == ("secret-key-1", "secret-key-2")
    assert "secret" not in repr(config) + str(dict(config.shown()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--upstream"),
        ({"upstream": "localhost:8000"}, "no URL"),
        ({"upstream": "http://me:secret@u/v1"}, "credentials"),
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"api_keys": ("short",)}, "fewer than 8"),
        ({"port": "many"}, "not a number"),
        ({"memory": "2g"}, "not one of"),
        ({"max_queue": -1}, "max_queue=-1 is negative"),
        ({"timeout": "-0.5"}, "timeout='-0.5' is negative"),
        ({"timeout": "nan"}, "out of range"),
        ({"port": 65_536}, "less than or equal to 65535"),
        ({"key_share": "0"}, "greater than 0"),
        ({"max_queue": "2.5"}, "not a number"),
        ({"upstream_key": 5}, "upstream_key cannot be used"),
        ({"nonsense": 1}, "no setting"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, Any], words: str) -> None:
    base = {} if not given else {"upstream": "http://u/v1"}
    with pytest.raises(InvalidParams, match=words):
        read_config({**base, **given})


def test_a_setting_that_cannot_be_used_is_not_shown_if_it_is_secret() -> None:
    for given in ({"upstream_key": ["my-secret"]}, {"database": ["my-secret"]}, {"api_keys": [["my-secret"]]}):
        with pytest.raises(InvalidParams) as refused:
            read_config({"upstream": "http://u", **given})
        assert "my-secret" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(InvalidParams, match="nonsense"):
        GatewayConfig("http://u", nonsense=1)  # type: ignore[call-arg]


def test_31_what_the_upstream_refuses_is_told_in_the_apis_shape(new_gateway: NewGateway) -> None:
    for status, expected in ((400, 400), (429, 429), (500, 500)):
        reply = ScriptedReply(status=status, error="said the upstream", headers={"x-should-retry": "false"})
        gateway = new_gateway({"m": lambda _, reply=reply: reply})
        answer = post(gateway)
        assert answer.status_code == expected
        assert "said the upstream" in answer.json()["error"]["message"]
        events = stream(gateway)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert "said the upstream" in events[-1]["response"]["error"]["message"]


def test_what_is_missing_is_told_before_the_start(process_runtime: Runtime, work_dir: Path) -> None:
    config = GatewayConfig("http://127.0.0.1:9/v1", data_dir=work_dir / "d", database="postgresql+nodriver://h/d")
    (problem,) = problems(config, process_runtime)
    assert "does not answer" in problem
    with pytest.raises(InvalidParams, match="database cannot be used"):
        serve(config, process_runtime)
