"""Responses from their start to their end, and every way to end early."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import openai
import pytest

from agent_tools.gateway.containers.containers import ContainerSpec
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_response, check_stream
from tests.gateway.test_chat import EXECUTE, run
from tests.gateway.test_responses import CODE_TOOL, INCLUDE, code, outputs, post, stream

SLEEP = "import time; print('started', flush=True); time.sleep(60)"


def until(check: Any) -> Any:
    """Ask until there is an answer; the test's own time limit bounds it."""
    pause = threading.Event()
    while not (found := check()):
        pause.wait(0.02)
    return found


def is_idle(gateway: Gateway) -> bool:
    return gateway.app.state.jobs.active == 0 and not any(gateway.services.containers.running().values())


def retrieve(gateway: Gateway, id_: str, query: str = "") -> httpx.Response:
    return httpx.get(f"{gateway.url}/v1/responses/{id_}{query}", timeout=30)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_28_a_client_that_leaves_ends_its_code_and_frees_its_place(new_gateway: NewGateway, is_streamed: bool) -> None:
    gateway = new_gateway({"m": lambda _: code(SLEEP)}, max_sandboxes=1)
    body = {"model": "m", "input": "Go.", "tools": [CODE_TOOL], "stream": is_streamed}
    with httpx.Client(timeout=None) as client, ThreadPoolExecutor() as pool:
        asked = pool.submit(client.post, f"{gateway.url}/v1/responses", json=body)
        until(lambda: any(gateway.services.containers.running().values()))
        _hang_up(client)
        with pytest.raises(httpx.HTTPError):
            asked.result()
    until(lambda: is_idle(gateway))


def _hang_up(client: httpx.Client) -> None:
    import socket

    for connection in client._transport._pool.connections:  # type: ignore[attr-defined]
        stream = connection._connection._network_stream.get_extra_info("socket")
        stream.shutdown(socket.SHUT_RDWR)


def test_28_a_chat_client_that_leaves_leaves_nothing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [run(SLEEP)]})
    messages: Any = [{"role": "user", "content": "Go."}]
    tools: Any = [EXECUTE]
    events = gateway.client().chat.completions.create(model="m", messages=messages, tools=tools, stream=True)
    next(iter(events))
    until(lambda: any(gateway.services.containers.running().values()))
    events.close()
    until(lambda: is_idle(gateway))
    assert gateway.services.containers.all_of("local") == []


def test_29_a_response_in_the_background_is_polled(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [code("7"), ScriptedReply(text="Seven.", wait_before=go_on)]})
    begun = check_response(post(gateway, background=True, include=INCLUDE).json())
    assert begun.status in ("queued", "in_progress")
    assert check_response(retrieve(gateway, begun.id).json()).status in ("queued", "in_progress")
    go_on.set()
    ended = until(lambda: has_ended(gateway, begun.id))
    assert check_response(ended).status == "completed"
    assert outputs(ended)[0]["outputs"] == [{"type": "logs", "logs": "7"}]
    assert ended["usage"]["total_tokens"] == 30


def has_ended(gateway: Gateway, id_: str) -> dict[str, Any] | None:
    body: dict[str, Any] = retrieve(gateway, id_).json()
    return body if body["status"] not in ("queued", "in_progress") else None


def test_29_a_response_in_the_background_is_cancelled(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(SLEEP)]})
    begun = post(gateway, background=True).json()
    until(lambda: any(gateway.services.containers.running().values()))
    cancelled = httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30).json()
    assert check_response(cancelled).status == "cancelled"
    assert check_response(retrieve(gateway, begun["id"]).json()).status == "cancelled"
    until(lambda: is_idle(gateway))
    again = httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30).json()
    assert again["status"] == "cancelled"


def test_29_a_stream_is_taken_up_again_where_it_was_left(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(7)", piece=4), ScriptedReply(text="It is seven.", piece=3)]})
    client = gateway.client()
    seen = []
    with client.responses.create(model="m", input="Go.", tools=[CODE_TOOL], background=True, stream=True) as events:  # type: ignore[call-overload]
        for event in events:
            seen.append(json.loads(event.to_json()))
            if len(seen) == 5:
                break
    id_ = seen[0]["response"]["id"]
    rest = client.responses.retrieve(id_, stream=True, starting_after=seen[-1]["sequence_number"])
    seen += [json.loads(event.to_json(exclude_unset=True)) for event in rest]
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert seen[-1]["type"] == "response.completed"
    assert retrieve(gateway, id_).json()["status"] == "completed"


def test_30_what_is_not_stored_is_not_there(new_gateway: NewGateway) -> None:
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


def test_31_an_upstream_that_breaks_off_ends_the_stream_properly(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Half of it", piece=2, cut_after=3)})
    events = stream(gateway)
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    assert events[-3]["item"]["status"] == "incomplete"
    check_response(events[-1]["response"])
    with pytest.raises(openai.APIError):
        list(gateway.client().responses.create(model="m", input="Go.", stream=True))
    answer = post(gateway)
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")


def test_31_a_reply_cut_at_its_limit_is_incomplete(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text="Half of", finish_reason="length")]})
    body = stream(gateway, max_output_tokens=2)[-1]["response"]
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert gateway.upstream.requests[0]["max_tokens"] == 2


def test_31_a_long_silence_is_bridged_by_comments(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Late.", wait_before=go_on)]}, heartbeat=0.05)
    body, last = {"model": "m", "input": "Go.", "stream": True}, ""
    with httpx.stream("POST", f"{gateway.url}/v1/responses", json=body, timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith(":"):
                go_on.set()
            last = line or last
    assert go_on.is_set()
    assert last == "data: [DONE]"


def test_more_than_may_wait_are_sent_away_and_told_when_to_return(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    slow = ScriptedReply(text="Ok.", wait_before=go_on)
    gateway = new_gateway({"m": lambda _: slow, "n": ["Ok."]}, max_sandboxes=1, max_queue=0, queue_timeout=7)
    begun = post(gateway, background=True).json()
    refused = post(gateway)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "7"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert post(gateway, model="n", tools=[]).status_code == 200  # what needs no sandbox does not wait for one
    go_on.set()
    until(lambda: has_ended(gateway, begun["id"]))
    assert until(lambda: post(gateway).status_code == 200)


def test_whoever_waits_too_long_is_sent_away(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    slow = ScriptedReply(text="Ok.", wait_before=go_on)
    gateway = new_gateway({"m": lambda _: slow}, max_sandboxes=1, queue_timeout=0.05)
    post(gateway, background=True)
    refused = post(gateway)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    go_on.set()


def test_the_time_one_response_may_take_is_bounded(new_gateway: NewGateway) -> None:
    body = stream(new_gateway({"m": lambda _: code(SLEEP)}, turn_timeout=1.5))[-1]["response"]
    assert body["status"] == "failed"
    assert outputs(body)[0]["status"] in ("completed", "incomplete", "failed")


def test_the_size_of_one_response_is_bounded(new_gateway: NewGateway) -> None:
    events = stream(new_gateway({"m": [ScriptedReply(text="x" * 9_000, piece=100)]}, max_response_bytes=20_000))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_gateway_that_stops_ends_what_is_under_way_and_leaves_no_sandbox(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(SLEEP)]})
    begun = post(gateway, background=True).json()
    until(lambda: any(gateway.services.containers.running().values()))
    engine = gateway.services.runtime.engine
    gateway.__exit__()
    assert engine.processes == {}  # type: ignore[attr-defined]
    again = new_gateway({}, data_dir=gateway.services.config.data_dir)
    body = check_response(retrieve(again, begun["id"]).json())
    assert body.status == "failed"
    assert body.error is not None
    assert "stopped before" in body.error.message


def test_37_many_at_once_do_not_mix(new_gateway: NewGateway) -> None:
    def obey(request: dict[str, Any]) -> ScriptedReply:
        said = [message for message in request["messages"] if message["role"] == "tool"]
        name = next(message["content"] for message in request["messages"] if message["role"] == "user")
        return ScriptedReply(text=f"{name} is done.") if len(said) == 3 else code(f"print({name!r}, {len(said)})")

    gateway = new_gateway({"m": obey}, max_sandboxes=3, max_queue=50, queue_timeout=120)

    async def one(client: openai.AsyncOpenAI, name: str) -> None:
        events = await client.responses.create(  # type: ignore[call-overload]
            model="m", input=name, tools=[CODE_TOOL], include=INCLUDE, stream=True
        )
        found = check_stream([json.loads(event.to_json(exclude_unset=True)) async for event in events])
        body = found[-1]["response"]
        logs = [call["outputs"][0]["logs"] for call in outputs(body)]
        assert logs == [f"{name} {number}\n" for number in range(3)]
        assert body["output"][-1]["content"][0]["text"] == f"{name} is done."

    async def all_of_them() -> None:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=120)
        async with client, anyio.create_task_group() as group:
            for number in range(9):
                group.start_soon(one, client, f"name-{number}")

    anyio.run(all_of_them)


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
def test_the_sandbox_starts_while_the_model_still_writes_its_code(new_gateway: NewGateway, path: str) -> None:
    is_response, written = path == "responses", threading.Event()
    call = ScriptedCall("python" if is_response else "execute_python", {"code": "print(6 * 7)"})
    gateway = new_gateway({"m": [ScriptedReply(calls=[call], piece=4, wait_midway=written), "42."]})
    question = {"input": "?"} if is_response else {"messages": [{"role": "user", "content": "?"}]}
    body = {"model": "m", "tools": [CODE_TOOL if is_response else EXECUTE], **question}
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(httpx.post, f"{gateway.url}/v1/{path}", json=body, timeout=60)
        until(gateway.services.containers.running)
        written.set()
        assert "42." in answer.result().text
    assert "42" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_a_container_that_is_deleted_while_it_starts_leaves_no_sandbox(new_gateway: NewGateway) -> None:
    containers = new_gateway({}).services.containers
    for _ in range(5):
        id_ = containers.create("me", ContainerSpec("short")).id
        with containers.held(id_) as (interpreter, _):
            containers.start_soon(id_, interpreter)
            containers.delete("me", id_)
    containers.close()
    assert containers.runtime.engine.processes == {}  # type: ignore[attr-defined]
