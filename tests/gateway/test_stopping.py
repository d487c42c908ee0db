"""Gateways that stop, are lost, or share their store with another; and what is left of their responses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from agent_tools.gateway.background import MAX_SILENCE
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.sse import EventStream
from agent_tools.gateway.store.records import BackgroundClaim, StoredEvents
from agent_tools.testing import ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_response, check_stream
from tests.gateway.test_lifecycle import SLEEP, is_idle, retrieve, until
from tests.gateway.test_responses import INCLUDE, code, outputs, post, stream

STOPPED = "The gateway was stopped before the response's end."


def events_of(text: str) -> list[dict[str, Any]]:
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def beside(new_gateway: NewGateway, gateway: Gateway, **options: Any) -> Gateway:
    """Another gateway on the same store."""
    config = gateway.services.config
    return new_gateway({}, upstream=config.upstream, data_dir=config.data_dir, **options)


def test_20_streams_are_told_that_the_gateway_stops(new_gateway: NewGateway) -> None:
    midway = ScriptedReply(text="Half of it", piece=2, wait_midway=threading.Event())
    gateway = new_gateway({"m": lambda _: midway}, shutdown_grace=0.2)
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(post, gateway, tools=[], stream=True) for _ in range(20)]
        until(lambda: gateway.app.state.jobs.active == 20 and len(gateway.upstream.requests) == 20)
        gateway.__exit__()
        answers = [each.result() for each in asked]
    for answer in answers:
        events = check_stream(events_of(answer.text))
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["error"] == {"code": "server_error", "message": STOPPED}


def test_what_ends_within_the_grace_is_whole_and_what_waits_is_sent_away(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Whole.", wait_midway=go_on)]}, shutdown_grace=30, max_sandboxes=1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, gateway, stream=True)
        until(lambda: gateway.upstream.requests)
        second = pool.submit(post, gateway, stream=True)
        until(lambda: gateway.app.state.jobs.admission.waiting)
        stopping = pool.submit(gateway.__exit__)
        assert second.result().json()["error"]["code"] == "gateway_stopped"
        go_on.set()
        assert check_stream(events_of(first.result().text))[-1]["type"] == "response.completed"
        stopping.result()


def test_29_events_are_kept_as_long_as_their_response(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(7)", piece=4), ScriptedReply(text="Seven.", piece=3)]})
    events = stream(gateway, background=True, include=INCLUDE)
    id_ = events[0]["response"]["id"]
    gateway.__exit__()
    again = beside(new_gateway, gateway)
    for after in (-1, 0, 5, len(events) - 2, len(events) + 5):
        found = events_of(retrieve(again, id_, f"?stream=true&starting_after={after}").text)
        assert found == events[after + 1 :]
    httpx.delete(f"{again.url}/v1/responses/{id_}")
    assert again.services.store.count(StoredEvents) == 0


def test_29_only_what_was_made_in_the_background_is_streamed_again(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    refused = retrieve(gateway, post(gateway).json()["id"], "?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("sign", ["process", "silence"])
def test_29_a_response_whose_gateway_is_gone_has_failed(new_gateway: NewGateway, sign: str) -> None:
    gateway = new_gateway({"m": lambda _: code(SLEEP)})
    other = beside(new_gateway, gateway)
    id_ = post(gateway, background=True).json()["id"]
    assert retrieve(other, id_).json()["status"] == "in_progress"
    elsewhere = retrieve(other, id_, "?stream=true"), httpx.post(f"{other.url}/v1/responses/{id_}/cancel")
    assert [each.status_code for each in elsewhere] == [409, 409]
    gone = {"gateway": labels_of_a_process_that_ended()} if sign == "process" else {"seen_at": -2 * MAX_SILENCE}
    other.services.store.change(BackgroundClaim, id_, **gone)
    if sign == "silence":
        other.services.sweep()
    body = check_response(retrieve(other, id_).json())
    assert body.error is not None
    assert (body.status, body.error.message) == ("failed", STOPPED)
    (event,) = events_of(retrieve(other, id_, "?stream=true&starting_after=6").text)
    assert (event["type"], event["sequence_number"]) == ("response.failed", 7)
    assert other.services.store.count(BackgroundClaim) == 0


def labels_of_a_process_that_ended() -> str:
    say = "import json; from agent_tools.runtime.owner import Owner; print(json.dumps(Owner.current().labels))"
    return subprocess.run([sys.executable, "-c", say], capture_output=True, check=True, text=True).stdout


def test_what_is_under_way_gives_signs_and_stays(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: code(SLEEP)})
    id_ = post(gateway, background=True).json()["id"]
    gateway.services.store.change(BackgroundClaim, id_, seen_at=0)
    gateway.services.sweep()
    assert retrieve(gateway, id_).json()["status"] == "in_progress"


def test_a_database_that_is_away_does_not_end_the_sweeping(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    services = new_gateway({}).services
    engine = sa.create_engine(services.config.database_url)
    BackgroundClaim.table.drop(engine)
    assert services.sweep() == services.sweep_failures == 1
    assert "sweeping failed: OperationalError" in caplog.text
    BackgroundClaim.table.create(engine)
    engine.dispose()
    assert services.sweep() == 0


def test_two_gateways_share_a_store(new_gateway: NewGateway) -> None:
    def obey(request: dict[str, Any]) -> ScriptedReply:
        last = request["messages"][-1]
        return code(last["content"]) if last["role"] == "user" else ScriptedReply(text="Ok.")

    gateway = new_gateway({"m": obey})
    other = beside(new_gateway, gateway)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(post, each, input="1", tools=[]) for each in (gateway, other) * 10]
        assert all(each.result().status_code == 200 for each in asked)
    first = post(gateway, input="x = 1; open('kept', 'w').write('k')").json()
    more = {"previous_response_id": first["id"], "include": INCLUDE}
    (call,) = outputs(post(other, input="print(open('kept').read())", **more).json())
    assert call["outputs"] == [{"type": "logs", "logs": "k\n"}]
    assert "variables are lost" in json.dumps(other.upstream.requests + gateway.upstream.requests)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_client_that_takes_nothing_counts_as_gone(is_over: bool) -> None:
    gone = threading.Event()

    async def serve() -> None:
        log = EventLog(1000)
        log.append({"type": "response.created"})
        log.is_closed = is_over
        await EventStream(log, gone.set, patience=0.01)({}, anyio.sleep_forever, send)  # type: ignore[arg-type]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    anyio.run(serve)
    assert gone.is_set()


def test_a_client_that_reads_slowly_holds_nobody_up(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="x" * 4_000_000, piece=20_000), "n": ["Ok."]})
    body = json.dumps({"model": "m", "input": "Go.", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as slow:
        slow.sendall(head.encode() + body)
        until(lambda: gateway.upstream.requests and is_idle(gateway))
        assert post(gateway, model="n", tools=[]).json()["status"] == "completed"
        found = bytearray()
        while piece := slow.recv(65536):
            found += piece
    assert found.count(b"event: response.output_text.delta") == 200
    assert b"event: response.completed" in found
    assert found.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
