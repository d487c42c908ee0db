"""`/v1/responses` over a WebSocket: events, continuation, refusals, and the end of a connection."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses import websocket
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from tests.gateway.asking import CODE_TOOL, FUNCTION, KEYS, SLEEP, STOPPED, beside, code, post, stream, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.connections import asked, connected, received, send
from tests.gateway.in_loop import SocketHere, serving, until_true


def refused(client: ClientConnection, **fields: Any) -> tuple[int, str]:
    """The status and the code of the one event that answers a request."""
    (event,) = asked(client, **fields)
    assert event["type"] == "error"
    return event["status"], event["error"]["code"]


def code_of_end(client: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        client.recv(60)
    assert closed.value.rcvd is not None
    return int(closed.value.rcvd.code)


def refusal_of(gateway: Gateway, **headers: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as answer, connected(gateway, **headers):
        pass
    response = answer.value.response
    assert response.headers["x-request-id"]
    return response.status_code, json.loads(response.body)["error"]["code"]


def test_the_events_are_those_of_a_stream_by_http(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("6 * 7"), "It is 42."] * 2})
    by_http = stream(gateway)
    with connected(gateway) as client:
        by_socket = asked(client, tools=[CODE_TOOL])
    assert [event["type"] for event in by_socket] == [event["type"] for event in by_http]
    assert [event["sequence_number"] for event in by_socket] == list(range(len(by_socket)))
    assert by_socket[-1]["response"]["output"][-1]["content"][0]["text"] == "It is 42."
    assert by_socket[-1]["response"]["store"]


def test_a_response_that_is_not_stored_is_continued_on_its_connection_alone(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One.", "Two.", "Three."]}, api_keys=KEYS)
    with connected(gateway) as client, connected(gateway) as other, connected(gateway, KEYS[1]) as foreign:
        first = asked(client, input="a", store=False)[-1]["response"]
        last = {"previous_response_id": first["id"], "store": False}
        for stranger in (other, foreign):
            assert refused(stranger, **last) == (400, "previous_response_not_found")
        second = asked(client, input="b", **last)[-1]["response"]
        third = asked(client, input="c", previous_response_id=second["id"], store=False)[-1]["response"]
        assert third["previous_response_id"] == second["id"]
    contents = [message["content"] for message in gateway.upstream.requests[-1]["messages"]]
    assert contents == ["a", "One.", "b", "Two.", "c"]
    assert post(gateway, **last, tools=[]).status_code == 401  # without a key
    with connected(gateway) as client:
        assert refused(client, **last) == (400, "previous_response_not_found")


def test_tools_that_an_item_has_brought_stay_for_the_connection(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."] * 3})
    more = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}
    with connected(gateway) as client:
        id_ = asked(client, input=[more, {"role": "user", "content": "Go."}], store=False)[-1]["response"]["id"]
        for _ in range(2):
            id_ = asked(client, previous_response_id=id_, store=False)[-1]["response"]["id"]
    for request in gateway.upstream.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == ["weather"]


def test_responses_of_one_key_make_no_other_lose_its_own(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "RECENT_BYTES", 10_000)
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, api_keys=KEYS)
    with connected(gateway) as client, connected(gateway, KEYS[1]) as greedy:
        id_ = asked(client, input="a", store=False)[-1]["response"]["id"]
        ids = [asked(greedy, input="x" * 4_000, store=False)[-1]["response"]["id"] for _ in range(4)]
        assert asked(client, previous_response_id=id_, store=False)[-1]["type"] == "response.completed"
        assert refused(greedy, previous_response_id=ids[1], store=False) == (400, "previous_response_not_found")
        assert asked(greedy, previous_response_id=ids[3], store=False)[-1]["type"] == "response.completed"


def test_variables_are_kept_from_response_to_response(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20"), "Done.", code("print(x + 1)"), "21."]})
    with connected(gateway) as client:
        first = asked(client, tools=[CODE_TOOL], store=False)[-1]["response"]
        fields = {"tools": [CODE_TOOL], "include": ["code_interpreter_call.outputs"], "store": False}
        second = asked(client, previous_response_id=first["id"], **fields)[-1]["response"]
    assert second["output"][0]["outputs"] == [{"type": "logs", "logs": "21\n"}]


def test_a_response_whose_continuation_failed_is_forgotten(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One.", ScriptedReply(status=400, error="No."), "Two."]})
    output = {"type": "function_call_output", "call_id": "call_of_nobody", "output": "1"}
    with connected(gateway) as client:
        last = {"previous_response_id": asked(client, store=False)[-1]["response"]["id"], "store": False}
        assert refused(client, input=[output], **last) == (400, "invalid_value")
        assert refused(client, **last) == (400, "previous_response_not_found")


def test_a_refusal_by_the_upstream_has_its_status(new_gateway: NewGateway) -> None:
    refusal = ScriptedReply(status=429, error="Slow down.", headers={"Retry-After": "7"})
    gateway = new_gateway({"m": lambda _: refusal})
    with connected(gateway) as client:
        *begun, error = asked(client)
    assert [event["type"] for event in begun] == ["response.created", "response.in_progress"]
    assert (error["type"], error["status"], error["headers"]) == ("error", 429, {"retry-after": "7"})
    assert error["error"]["message"] == "Slow down."


def test_a_failure_after_the_first_words_is_told_once(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply("Half of it", piece=2, error="Broken."), "Whole."]})
    with connected(gateway) as client:
        events = asked(client)
        assert events[-1]["type"] == "response.failed"
        assert "error" not in [event["type"] for event in events]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert asked(client)[-1]["type"] == "response.completed"


def test_streams_of_one_connection_run_beside_each_other(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    slow = ScriptedReply("Slow.", wait_before=go_on)
    gateway = new_gateway({"slow": lambda _: slow, "m": ["One.", "Two."]})
    with connected(gateway) as client:
        send(client, model="slow", stream_id="a")
        send(client, stream_id="a")
        quick = []
        send(client, stream_id="b")
        while not quick or quick[-1]["type"] != "response.completed":
            event = json.loads(client.recv(60))
            if event["stream_id"] == "b":
                quick.append(event)
        assert [event["sequence_number"] for event in quick] == list(range(len(quick)))
        go_on.set()
        ends = [received(client)[-1] for _ in range(2)]
    texts = [each["response"]["output"][0]["content"][0]["text"] for each in (quick[-1], *ends)]
    assert texts == ["One.", "Slow.", "Two."]
    assert [each["stream_id"] for each in ends] == ["a", "a"]


def test_a_response_without_generation_prepares_the_next_one(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Done."]})
    with connected(gateway) as client:
        ready = asked(client, input="Beforehand.", generate=False, store=False)
        assert [event["type"] for event in ready] == ["response.created", "response.in_progress", "response.completed"]
        assert not gateway.upstream.requests
        asked(client, previous_response_id=ready[-1]["response"]["id"], store=False)
    assert [each["content"] for each in gateway.upstream.requests[0]["messages"]] == ["Beforehand.", "Go."]


def test_a_client_that_leaves_ends_its_response(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Half of it", piece=2, wait_midway=threading.Event())})
    with connected(gateway) as client:
        send(client)
        until(lambda: gateway.upstream.requests)
    until(lambda: gateway.app.state.jobs.active == 0)
    until(lambda: gateway.app.state.sockets.open == 0)
    assert gateway.upstream.hung_up.wait(60)


def test_code_is_interrupted_when_its_client_leaves(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(SLEEP)]})
    with connected(gateway) as client:
        send(client, tools=[CODE_TOOL])
        until(lambda: any(gateway.services.containers.running().values()))
    until(lambda: gateway.app.state.jobs.active == 0)


def test_a_connection_needs_what_a_request_needs(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One."]}, api_keys=KEYS)
    assert refusal_of(gateway, key="unknown-key-123") == (401, "invalid_api_key")
    open_to_all = new_gateway({"m": ["One."]})
    assert refusal_of(open_to_all, Origin="https://evil.example") == (403, "foreign_origin")
    refusals = b'agent_tools_requests_total{method="GET",route="none",status="403"} 1.0'
    until(lambda: refusals in open_to_all.services.metrics.text())
    metrics = open_to_all.services.metrics.text().decode()
    assert 'agent_tools_security_events_total{event="foreign_origin"} 1.0' in metrics


def test_connections_of_a_key_are_bounded(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One."]}, api_keys=KEYS, max_connections=8)
    with connected(gateway), connected(gateway), connected(gateway):
        assert refusal_of(gateway) == (429, "rate_limit_exceeded")
        with connected(gateway, KEYS[1]) as other:
            assert asked(other)[-1]["type"] == "response.completed"
            assert refusal_of(gateway, key=KEYS[1]) == (429, "rate_limit_exceeded")
            assert "agent_tools_websockets 4.0" in gateway.services.metrics.text().decode()


def test_responses_are_counted_as_requests_are(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("One.")}, api_keys=KEYS, max_requests_per_minute=2)
    with connected(gateway) as client:
        for _ in range(2):
            assert asked(client)[-1]["type"] == "response.completed"
        assert refused(client) == (429, "rate_limit_exceeded")
    until(lambda: b'{end="limited",key="setting-1"} 1.0' in gateway.services.metrics.text())
    metrics = gateway.services.metrics.text().decode()
    assert 'agent_tools_requests_total{method="WEBSOCKET",route="create_response",status="200"} 2.0' in metrics


@pytest.mark.parametrize("kind", ["response.create", "response.steer"])
def test_a_key_that_is_revoked_ends_the_connection(new_gateway: NewGateway, kind: str) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("One.")}, api_keys=KEYS)
    with connected(gateway) as client:
        assert asked(client)[-1]["type"] == "response.completed"
        gateway.services.keys.accept_named({}, revoked=list(gateway.services.keys._set))
        assert refused(client, type=kind) == (401, "invalid_api_key")
        assert code_of_end(client) == 1008
    assert b'agent_tools_security_events_total{event="unknown_key"} 1.0' in gateway.services.metrics.text()


def test_what_is_no_request_is_refused_and_the_connection_goes_on(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One."]})
    deep = '{"type": "response.create", "input": ' + "[" * 200 + "]" * 200 + "}"
    with connected(gateway) as client:
        for text in ("", "null", "[]", "{", deep, '{"a": NaN}'):
            client.send(text)
            (event,) = received(client)
            assert (event["type"], event["status"]) == ("error", 400), text
        assert refused(client, type="response.cancel") == (400, "invalid_value")
        assert refused(client, type=["response.create"]) == (400, "invalid_value")
        assert refused(client, background=True) == (400, "unsupported_value")
        assert refused(client, model=None) == (400, "missing_required_parameter")
        assert refused(client, stream_id="a" * 300) == (400, "invalid_value")
        assert refused(client, stream_id=1) == (400, "invalid_type")
        assert refused(client, generate="no") == (400, "invalid_type")
        (steered,) = asked(client, type="response.steer", previous_response_id="resp_1")
        assert steered["error"]["code"] == "steering_not_supported"
        assert asked(client, stream=True)[-1]["type"] == "response.completed"


def test_events_that_steer_count_as_requests(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One."]}, api_keys=KEYS, max_requests_per_minute=2)
    with connected(gateway) as client:
        codes = [asked(client, type="response.steer")[0]["error"]["code"] for _ in range(3)]
    assert codes == ["steering_not_supported", "steering_not_supported", "rate_limit_exceeded"]


def test_a_binary_message_ends_the_connection(new_gateway: NewGateway) -> None:
    with connected(new_gateway({"m": []})) as client:
        client.send(b'{"type": "response.create"}')
        assert received(client)[0]["status"] == 400
        assert code_of_end(client) == 1003


def test_requests_that_wait_are_bounded(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply("One.", wait_before=go_on)})
    with connected(gateway) as client:
        for _ in range(17):
            send(client)
        kinds = [json.loads(client.recv(60)) for _ in range(3)]
        assert [event["status"] for event in kinds if event["type"] == "error"] == [429]
        go_on.set()
        for _ in range(16):
            assert received(client)[-1]["type"] == "response.completed"


def test_a_connection_ends_after_its_lifetime_when_its_response_has(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply("One.", wait_before=go_on)})
    gateway.app.state.sockets.lifetime = 0.2
    with connected(gateway) as client:
        send(client)
        until(lambda: gateway.upstream.requests)
        threading.Event().wait(0.3)
        send(client)
        go_on.set()
        found = list(map(json.loads, client))  # until the end: a refusal for the second response, and one at the end
        assert "response.completed" in [each["type"] for each in found]
        assert [each["error"]["code"] for each in found if "error" in each] == [
            "websocket_connection_limit_reached"
        ] * 2
        assert code_of_end(client) == 1001


async def _refused_while_one_runs(config: GatewayConfig, runtime: Runtime, go_on: threading.Event) -> int:
    """Return the most frames that the refusals of one connection hold, once there are many."""
    async with serving(config, runtime) as (_, app):
        socket, asked = SocketHere(app), json.dumps({"type": "response.create", "model": "m", "input": "Hi."})
        socket.ask(asked)
        await until_true(lambda: app.state.jobs.active)
        app.state.sockets.closing.set()
        for _ in range(20):
            socket.ask(asked)
        await until_true(lambda: sum("gateway_stopped" in each.get("text", "") for each in socket.sent) == 20)
        refusals = [each for each in gc.get_objects() if isinstance(each, ApiError)]
        most = max((len(list(traceback.walk_tb(each.__traceback__))) for each in refusals), default=0)
        go_on.set()
        await socket.leave()
        return most


def test_refused_requests_are_not_kept_until_their_connection_ends(process_runtime: Runtime, work_dir: Path) -> None:
    go_on = threading.Event()
    with ScriptedServer({"m": lambda _: ScriptedReply("One.", wait_before=go_on)}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d", pool=0)
        try:
            assert asyncio.run(_refused_while_one_runs(config, process_runtime, go_on)) < 10
        finally:
            go_on.set()


def test_a_gateway_that_stops_ends_responses_and_closes_with_a_code(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Half of it", piece=2, wait_midway=threading.Event())})
    with connected(gateway) as idle, connected(gateway) as client:
        send(client)
        until(lambda: gateway.upstream.requests)
        stopping = threading.Thread(target=gateway.__exit__)
        stopping.start()
        assert code_of_end(idle) == 1012
        last = received(client)[-1]
        assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", STOPPED)
        assert code_of_end(client) == 1012
        stopping.join()


def test_a_container_of_another_gateway_is_told(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20"), "Done."]})
    first = post(gateway).json()
    with connected(beside(new_gateway, gateway)) as client:
        refused = asked(client, tools=[CODE_TOOL], previous_response_id=first["id"])[-1]
    assert (refused["type"], refused["status"], refused["error"]["code"]) == ("error", 421, "container_elsewhere")


def test_a_function_is_called_and_answered(new_gateway: NewGateway) -> None:
    call = ScriptedReply(calls=[ScriptedCall("weather", {}, id="call_1")])
    gateway = new_gateway({"m": [call, "It rains."]})
    with connected(gateway) as client:
        first = asked(client, tools=[FUNCTION], store=False)[-1]["response"]
        output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
        second = asked(client, input=[output], previous_response_id=first["id"], store=False)[-1]["response"]
    assert second["output"][0]["content"][0]["text"] == "It rains."
