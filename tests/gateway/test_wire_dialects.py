"""Upstreams of many wires: the same conversation with each, as a stream of both APIs, which is made as JSON is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.gateway import dialects, response_dialects
from tests.gateway.asking import FUNCTION, INCLUDE, ask, chunks, in_container, outputs, post, stream
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.dialects import Request
from tests.gateway.wire_dialects import (
    BODIES,
    FRAMINGS,
    LESSONS,
    NO_TOOLS,
    PARTS,
    SHAPES,
    TWO,
    WRITTEN,
    framed,
    lesson,
    shaped,
    with_arguments,
    without_tools,
)
from tests.recorder import Answer, Recorder, events

Serve = Callable[[Request], Answer]
LOGS = [{"type": "logs", "logs": "42\n"}]
CHAT: dict[str, Mapping[str, Serve]] = {
    "framing": {name: framed(change) for name, change in FRAMINGS.items()},
    "chunks": {name: shaped(change) for name, change in SHAPES.items()},
    "arguments": {name: with_arguments(arguments) for name, arguments in WRITTEN.items()},
    "two calls": TWO,
    "lessons": {**LESSONS, **{f"no tools: {name}": without_tools(*each) for name, each in NO_TOOLS.items()}},
}


class Talk:
    """A gateway before a server with a dialect for each model; code of all of them runs in one container."""

    def __init__(self, gateway: Gateway, upstream: Recorder) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self._tools = in_container(gateway.client().containers.create(name="c").id)

    def post(self, model: str, **asked: Any) -> httpx.Response:
        return post(self.gateway, model=model, tools=self._tools, include=INCLUDE, **asked)

    def stream(self, model: str, **asked: Any) -> list[dict[str, Any]]:
        return stream(self.gateway, model=model, tools=self._tools, include=INCLUDE, **asked)

    def ask(self, model: str, **asked: Any) -> httpx.Response:
        return ask(self.gateway, model=model, tools=self._tools, **asked)

    def said(self, model: str) -> str:
        """Return the answer of a chat completion."""
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks(self.ask(model, stream=True))]
        return "".join(delta.get("content") or "" for delta in deltas)

    def wrong(self, model: str, *, is_two: bool = False) -> list[Any]:
        """Return what is not as it should be of a dialect."""
        calls = [(dialects.CODE, LOGS)] * (1 + is_two)
        text = "It is 42 and 42." if is_two else "It is 42."
        found: list[Any] = [shown(self.stream(model)[-1]["response"]), self.said(model)]
        return found if found != [("completed", calls, text), text] else []


@pytest.fixture
def talk(new_gateway: NewGateway) -> Iterator[Callable[..., Talk]]:
    with Recorder() as recorder:

        def make(dialects: Mapping[str, Serve], **options: Any) -> Talk:
            recorder.answer = lambda seen: dialects[seen.json["model"]](seen.json) if seen.body else Answer()
            return Talk(new_gateway({}, upstream=recorder.base_url, upstream_key="k", **options), recorder)

        yield make


def shown(body: dict[str, Any]) -> tuple[Any, ...]:
    """All that a response says of the answer."""
    calls = [(item["code"], item["outputs"]) for item in outputs(body)]
    return body["status"], calls, spoken(body)


def spoken(body: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in body["output"] if item["type"] == "message")


def thought(body: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in body["output"] if item["type"] == "reasoning")


@pytest.mark.parametrize("group", CHAT)
def test_every_form_of_the_same_answer_is_read_alike(talk: Any, group: str) -> None:
    talking = talk(CHAT[group])
    found = {name: talking.wrong(name, is_two=group == "two calls") for name in CHAT[group]}
    assert {name: each for name, each in found.items() if each} == {}
    taught = len(found) if group == "lessons" else 0
    assert len(talking.upstream.seen) == 4 * len(found) + taught, "two for each of two answers"


def test_every_form_of_usage_is_counted(talk: Any) -> None:
    talking = talk(CHAT["chunks"])
    for name in ("all chunks", "usage in every chunk", "usage in the choice", "usage as text"):
        assert talking.post(name).json()["usage"]["total_tokens"] == 2 * 10, name


def test_every_form_of_a_response_is_read_alike(talk: Any) -> None:
    talking = talk(response_dialects.DIALECTS, upstream_api="responses")
    found = {name: talking.wrong(name) for name in response_dialects.DIALECTS}
    assert {name: each for name, each in found.items() if each} == {}
    assert len(talking.upstream.seen) == 4 * len(found)
    for name in (each for each in found if "reasoning" in each):
        assert thought(talking.post(name).json()) == response_dialects.THOUGHT * 2, name


def test_a_server_without_tools_is_offered_them_in_the_prompt(talk: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "agent_tools.models")
    talking = talk({name: without_tools(*NO_TOOLS["Ollama"]) for name in ("m", "other")})
    answers = [talking.post("m", instructions="Be brief.", parallel_tool_calls=True), talking.ask("m", stream=True)]
    assert [answer.headers["x-agent-tools-calls"] for answer in answers] == ["prompted"] * 2
    assert len(talking.upstream.seen) == 3 + 2, "it is learned once"
    del talking.upstream.seen[3:]
    assert [record.message for record in caplog.records] == ["learned of the server of the model m: tools=prompted"]
    first, second = (seen.json["messages"] for seen in talking.upstream.seen[1:])
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[0]["content"].startswith("Be brief.\n\nYou can call functions.")
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[2]["content"] == f'<tool_call>\n{{"name": "python", "arguments": {dialects.ARGUMENTS}}}\n</tool_call>'
    assert second[3]["content"].startswith("<tool_response>\nstdout:")
    assert second[3]["content"].endswith("</tool_response>")
    forced = talking.post("m", tool_choice="required")
    assert forced.json()["status"] == "completed"
    assert "Call a function now" in talking.upstream.seen[-2].json["messages"][0]["content"]
    assert "Call a function now" not in talking.upstream.seen[-1].json["messages"][0]["content"]
    assert spoken(talking.post("m", tool_choice="none").json()) == "I have no tools."
    assert len(talking.upstream.seen) == 6
    talking.post("other")
    assert len(talking.upstream.seen) == 9, "another model may have tool calling"


@pytest.mark.parametrize(
    "words",
    [
        "The tool_choice parameter does not support being set to required or object in thinking mode",
        'Thinking mode only supports "auto" for tool_choice.',
    ],
)
def test_a_choice_that_is_refused_while_the_model_thinks_is_left_to_it(talk: Any, words: str) -> None:
    talking = talk({"m": lesson(words, lambda request: request.get("tool_choice") == "required")})
    for _ in range(2):
        assert talking.wrong("m") == []
        assert shown(talking.post("m", tool_choice="required").json())[2] == "It is 42."
    assert [seen.json.get("tool_choice") for seen in talking.upstream.seen[4:7]] == ["required", "auto", "auto"]
    assert len(talking.upstream.seen) == 2 * (4 + 2) + 1


def test_a_web_page_is_called_one(talk: Any) -> None:
    talking = talk({"m": lambda _: Answer(b"<!doctype html><title>Sign in</title>", "text/html")})
    for answer in (talking.post("m"), talking.ask("m")):
        assert answer.status_code == 502
        assert "answered with a web page" in answer.json()["error"]["message"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://user:secret@api.example/v1/chat/completions?key=secret", "https://api.example/v1/chat/completions:"),
        ("/login\x1b[2J" + "x" * 1000, "/login"),
        ("http://[", "an address that is malformed"),
    ],
)
def test_a_server_that_redirects_is_not_followed_and_its_address_is_shown(
    talk: Any, status: int, location: str, shown: str
) -> None:
    talking = talk({"m": lambda _: Answer(b"", "text/plain", status, {"Location": location})})
    for answer in (talking.post("m"), talking.ask("m")):
        assert answer.status_code == 502
        message = answer.json()["error"]["message"]
        assert f" redirects to {shown}" in message.replace(talking.upstream.base_url.removesuffix("/v1"), "")
        assert "secret" not in message
        assert message.isprintable()
        assert len(message) < 400
    assert len(talking.upstream.seen) == 2


@pytest.mark.parametrize("name", ["as documented", "no deltas", "only the last event", "all at once"])
def test_arguments_of_functions_always_come_in_deltas(talk: Any, name: str) -> None:
    talking = talk(response_dialects.DIALECTS, upstream_api="responses")
    found = stream(talking.gateway, model=name, tools=[FUNCTION])
    deltas = [event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == found[-1]["response"]["output"][0]["arguments"] == dialects.ARGUMENTS


def failing(error: Any) -> Serve:
    """A server that fails within its second answer."""

    def serve(request: Request) -> Answer:
        part = {"choices": [{"index": 0, "delta": {"content": "It is"}}]}
        return events(part, error) if dialects.told(request) else dialects.called(request)

    return serve


def test_every_error_in_a_stream_fails_the_answer(talk: Any) -> None:
    servers = {str(number): failing(part) for number, part in enumerate(PARTS)}
    talking = talk(servers)
    for name in servers:
        *_, error, failed = talking.stream(name)
        assert (error["type"], failed["type"]) == ("error", "response.failed"), name
        assert failed["response"]["status"] == "failed"
        for answer in (talking.post(name), talking.ask(name)):
            assert answer.status_code >= 500, name
            assert "It broke." in answer.json()["error"]["message"], name


def test_the_words_of_every_refusal_reach_the_client(talk: Any) -> None:
    servers = {
        str(number): lambda _, body=body: Answer(json.dumps(body).encode(), status=400)
        for number, body in enumerate(BODIES)
    }
    talking = talk(servers)
    for name in servers:
        for answer in (talking.post(name), talking.post(name, stream=True), talking.ask(name)):
            assert (answer.status_code, answer.json()["error"]["message"]) == (400, "It broke."), name


WRONG_ROLES = "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"message": WRONG_ROLES}}, 400),
        ({"error": {"code": 500, "message": WRONG_ROLES, "type": "server_error"}}, 500),
        ({"error": f"Error rendering prompt: {WRONG_ROLES}"}, 503),
        ({"error": {"message": f"rpc error: {WRONG_ROLES}", "type": "server_error"}}, 200),
    ],
)
def test_a_refusal_teaches_by_its_words_whatever_its_status_is(talk: Any, body: Any, status: int) -> None:
    def serve(request: Request) -> Answer:
        if "uu" in "".join(each["role"][0] for each in request["messages"]):
            return Answer(json.dumps(body).encode(), status=status)
        return dialects.plain(request)

    talking = talk({"m": serve})
    asked = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for number in range(2):
        body_of_it = talking.post("m", input=asked).json()
        assert (body_of_it["status"], spoken(body_of_it)) == ("completed", "It is 42.")
        assert len(talking.upstream.seen) == 3 + 2 * number, "it is learned at once, and kept"


def test_a_refusal_that_comes_after_code_has_run_costs_nothing(talk: Any) -> None:
    def serve(request: Request) -> Answer:
        if any(message.get("content") == "" for message in request["messages"]):
            return Answer(
                b'{"error": {"message": "The text field in the ContentBlock object at 1 is blank."}}', status=500
            )
        return dialects.plain(request)

    body = talk({"m": serve}).post("m").json()
    assert (body["status"], spoken(body), len(outputs(body))) == ("completed", "It is 42.", 1)


def test_a_field_that_a_list_of_errors_names_only_in_its_place_is_left_out(talk: Any) -> None:
    def serve(request: Request) -> Answer:
        if any("reasoning_content" in each or "reasoning" in each for each in request["messages"]):
            field = "reasoning_content" if "reasoning_content" in json.dumps(request["messages"]) else "reasoning"
            wrong = {"loc": ["body", "messages", 1, "assistant", field], "msg": "Extra inputs are not permitted"}
            return Answer(json.dumps({"object": "error", "message": {"detail": [wrong]}}).encode(), status=422)
        return dialects.plain(request)

    thought_before = {
        "type": "reasoning",
        "id": "rs_x",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I"}],
    }
    asked = [{"role": "user", "content": "a"}, thought_before, {"role": "assistant", "content": "b"}]
    body = talk({"m": serve}).post("m", input=[*asked, {"role": "user", "content": "c"}]).json()
    assert (body["status"], spoken(body)) == ("completed", "It is 42.")


FAILED = {
    "an error in the choice": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "It broke."}}],
    "a reason of failure": [{"delta": {}, "finish_reason": "It broke."}],
}


@pytest.mark.parametrize("choices", FAILED.values(), ids=FAILED)
def test_an_answer_that_failed_is_failed_and_none_of_its_calls_runs(talk: Any, choices: list[Any]) -> None:
    def serve(request: Request) -> Answer:
        function = {"name": dialects.tool(request), "arguments": dialects.ARGUMENTS}
        call = {"delta": {"tool_calls": [{"index": 0, "id": "c", "function": function}]}}
        return events({"choices": [call]}, {"choices": choices})

    talking = talk({"m": serve})
    *_, failed = talking.stream("m")
    assert failed["response"]["status"] == "failed"
    assert "It broke." in failed["response"]["error"]["message"]
    assert all(item["outputs"] != [LOGS] for item in outputs(failed["response"]))
    assert talking.ask("m").status_code >= 500


@pytest.mark.parametrize("status", [401, 403])
def test_the_refusal_of_the_gateways_key_is_the_operators_with_the_words_and_without_the_key(
    talk: Any, status: int
) -> None:
    words = "Incorrect API key provided: sk-up***cret."
    talking = talk({"m": lambda _: Answer(json.dumps({"error": {"message": words}}).encode(), status=status)})
    for answer in (talking.post("m"), talking.ask("m")):
        message = answer.json()["error"]["message"]
        assert (answer.status_code, "Incorrect API key provided" in message, "cret" in message) == (502, True, False)


CUT = dialects.ARGUMENTS[:-6]


@pytest.mark.parametrize("reason", ["length", "tool_calls", "stop", "content_filter"])
def test_half_a_call_is_never_made(talk: Any, reason: str) -> None:
    def serve(request: Request) -> Answer:
        if dialects.told(request):
            return dialects.answered(request)
        function = {"name": dialects.tool(request), "arguments": CUT}
        call = {"index": 0, "id": "c", "type": "function", "function": function}
        return dialects.said({"tool_calls": [call]}, reason=reason)

    talking = talk({"m": serve})
    bodies = [talking.post("m").json(), talking.stream("m")[-1]["response"]]
    for body in bodies:
        assert [item["outputs"] for item in outputs(body)] != [LOGS]
        assert spoken(body) in ("", "It is ?.")
    assert "42." not in talking.ask("m").text
