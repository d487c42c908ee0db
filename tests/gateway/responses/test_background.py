"""Background responses: polled, cancelled, streamed again, and lost with their gateway."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import RowsAway
from agent_tools.gateway.background import BackgroundResponses
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.store.records import (
    ConversationItem,
    GatewayRow,
    ResponseBody,
    ResponseHead,
    StoredCall,
    StoredEvents,
    StoredItem,
    StoredResponse,
)
from agent_tools.gateway.store.store import Store
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import (
    CODE_TOOL,
    INCLUDE,
    SLEEP,
    STOPPED,
    beside,
    code,
    events_of,
    has_ended,
    is_idle,
    outputs,
    post,
    retrieve,
    stream,
    until,
)
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_response


def test_a_response_in_the_background_is_polled(new_gateway: NewGateway) -> None:
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


def test_a_response_in_the_background_is_cancelled(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(SLEEP)]})
    begun = post(gateway, background=True).json()
    until(lambda: any(gateway.services.containers.running().values()))
    cancelled = httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30).json()
    assert check_response(cancelled).status == "cancelled"
    assert check_response(retrieve(gateway, begun["id"]).json()).status == "cancelled"
    until(lambda: is_idle(gateway))
    again = httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30).json()
    assert again["status"] == "cancelled"


WAITS_FOR_A_PROGRAM = "open('begun', 'w').close()\n!sleep 60\nopen('went_on', 'w').close()"


def names_of_files(gateway: Gateway) -> set[str]:
    return {path.name for path in (gateway.services.containers.config.data_dir / "containers").glob("*/*")}


@pytest.mark.parametrize("stopped_by", ["cancel", "leaving"])
def test_no_later_line_runs_once_a_response_is_stopped(new_gateway: NewGateway, stopped_by: str) -> None:
    gateway = new_gateway({"m": [code(WAITS_FOR_A_PROGRAM)]})
    if stopped_by == "cancel":
        begun = post(gateway, background=True).json()
        until(lambda: "begun" in names_of_files(gateway))
        httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30)
    else:
        with gateway.client().responses.create(model="m", input="Go.", tools=[CODE_TOOL], stream=True) as events:  # type: ignore[call-overload]
            next(iter(events))
            until(lambda: "begun" in names_of_files(gateway))
    until(lambda: is_idle(gateway))
    assert "went_on" not in names_of_files(gateway)


BAD_FILE = "open('bad.py', 'w').write('raise ValueError(1)')\n%run bad.py\nprint('went on'.upper())"


@pytest.mark.parametrize("failing", ["%%capture\n1 / 0", "%%capture x\nimport nope", "%%capture\nx = = 3", BAD_FILE])
def test_an_error_of_captured_code_and_of_a_file_is_in_the_output_of_its_call(
    new_gateway: NewGateway, failing: str
) -> None:
    gateway = new_gateway({"m": [code(failing), ScriptedReply(text="It failed.")]})
    call = outputs(post(gateway, include=INCLUDE).json())[0]
    assert "Error" in call["outputs"][0]["logs"]
    assert "WENT ON" not in json.dumps(call["outputs"])


def test_an_answer_that_is_cancelled_while_it_is_written_is_incomplete(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Half of an answer.", piece=2, wait_midway=go_on)]})
    begun = post(gateway, background=True, tools=[]).json()
    (job,) = until(lambda: [job for job in gateway.app.state.jobs.all_of(ResponseJob) if job.body["output"]])
    until(lambda: len(job.log.events) > 8)
    cancelled = httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30).json()
    go_on.set()
    assert [(item["type"], item["status"]) for item in cancelled["output"]] == [("message", "incomplete")]
    done = [event for event in events_of(retrieve(gateway, begun["id"], "?stream=true").text) if "item" in event]
    assert done[-1]["item"]["status"] == "incomplete"


def test_one_whose_client_waits_for_it_is_found_not_cancelled_and_given_up_by_delete(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Never.", wait_before=go_on)]}, refusal_wait=0.05)
    with gateway.client().responses.create(model="m", input="Go.", stream=True) as events:
        id_ = next(iter(events)).response.id  # type: ignore[union-attr]
        assert check_response(retrieve(gateway, id_).json()).status == "in_progress"
        refused = httpx.post(f"{gateway.url}/v1/responses/{id_}/cancel", timeout=30)
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            400,
            "Cannot cancel a synchronous response.",
        )
        assert httpx.delete(f"{gateway.url}/v1/responses/{id_}", timeout=30).json()["deleted"] is True
        assert retrieve(gateway, id_).status_code == 404
    go_on.set()
    until(lambda: is_idle(gateway))
    assert retrieve(gateway, id_).status_code == 404


def test_a_stream_is_taken_up_again_where_it_was_left(new_gateway: NewGateway) -> None:
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


def test_events_are_kept_as_long_as_their_response(new_gateway: NewGateway) -> None:
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


def test_only_what_was_made_in_the_background_is_streamed_again(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    refused = retrieve(gateway, post(gateway).json()["id"], "?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("sign", ["process", "silence"])
@pytest.mark.parametrize("is_swept", [True, False])
def test_a_response_whose_gateway_is_gone_has_failed(new_gateway: NewGateway, sign: str, is_swept: bool) -> None:
    gateway = new_gateway({"m": lambda _: code(SLEEP)})
    other = beside(new_gateway, gateway)
    id_ = post(gateway, background=True).json()["id"]
    assert retrieve(other, id_).json()["status"] == "in_progress"
    elsewhere = retrieve(other, id_, "?stream=true"), httpx.post(f"{other.url}/v1/responses/{id_}/cancel")
    assert [each.status_code for each in elsewhere] == [421, 421]
    store = other.services.store
    row = store.get(GatewayRow, gateway.services.membership.id)
    gone = {"process": labels_of_a_process_that_ended()} if sign == "process" else {"seen_at": 0.0}
    store.add(replace(row, id="gone", **gone))
    store.change(StoredResponse, id_, gateway="gone")
    if is_swept:
        other.services.sweep()
        assert store.get(ResponseHead, id_).status == "failed"
    body = check_response(retrieve(other, id_).json())
    assert body.error is not None
    assert (body.status, body.error.message) == ("failed", STOPPED)
    (event,) = events_of(retrieve(other, id_, "?stream=true&starting_after=6").text)
    assert (event["type"], event["sequence_number"]) == ("response.failed", 7)


def labels_of_a_process_that_ended() -> str:
    say = "import json; from agent_tools.machine.owner import Owner; print(json.dumps(Owner.current().labels))"
    return subprocess.run([sys.executable, "-c", say], capture_output=True, check=True, text=True).stdout


def test_an_active_response_of_a_live_gateway_is_not_swept(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.", wait_before=go_on)})
    other = beside(new_gateway, gateway)
    id_ = post(gateway, background=True, tools=[]).json()["id"]
    for each in (gateway, other):
        each.services.sweep()
        assert retrieve(each, id_).json()["status"] in ("queued", "in_progress")
    go_on.set()
    assert until(lambda: has_ended(other, id_))["status"] == "completed"


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
    gateway.services.containers.close()  # as when it stops
    more = {"previous_response_id": first["id"], "include": INCLUDE}
    (call,) = outputs(post(other, input="print(open('kept').read())", **more).json())
    assert call["outputs"] == [{"type": "logs", "logs": "k\n"}]
    assert "variables are kept" in json.dumps(other.upstream.requests + gateway.upstream.requests)


def test_a_stream_begins_after_any_number(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = post(gateway, tools=[], background=True).json()["id"]
    until(lambda: has_ended(gateway, id_))
    got = {}
    for after in ("-99", "-1", "3", "9" * 15):
        text = httpx.get(f"{gateway.url}/v1/responses/{id_}?stream=true&starting_after={after}").text
        got[after] = [json.loads(line[6:])["sequence_number"] for line in text.split("\n") if line[:7] == "data: {"]
    assert got["-99"] == got["-1"]
    assert got["-1"][0] == 0
    assert got["3"] == got["-1"][4:]
    assert got["9" * 15] == []


class LateBackground(BackgroundResponses):
    """Returns a response's columns as they were, once the response has ended."""

    go_on = threading.Event()
    has_ended: Any = None

    def settled(self, head: ResponseHead) -> ResponseHead:
        found = super().settled(head)
        self.go_on.set()
        until(self.has_ended)
        return found


@pytest.mark.parametrize("how", ["resume", "cancel"])
def test_one_that_ends_while_it_is_asked_for_is_not_taken_for_another_gateways(
    new_gateway: NewGateway, how: str
) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.", wait_before=go_on)})
    late = LateBackground(gateway.services.store, gateway.services.membership.id)
    late.go_on, late.has_ended, gateway.services.background = go_on, lambda: is_idle(gateway), late
    id_ = post(gateway, background=True, tools=[]).json()["id"]
    if how == "resume":
        answer = retrieve(gateway, id_, "?stream=true")
        assert events_of(answer.text)[-1]["type"] == "response.completed"
    else:
        answer = httpx.post(f"{gateway.url}/v1/responses/{id_}/cancel", timeout=30)
        assert answer.json()["status"] == "completed"
    assert answer.status_code == 200


def test_many_are_resumed_and_cancelled_just_as_they_end(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})

    def ask_again(number: int) -> int:
        id_ = post(gateway, background=True, tools=[]).json()["id"]
        if number % 2:
            return retrieve(gateway, id_, "?stream=true").status_code
        return httpx.post(f"{gateway.url}/v1/responses/{id_}/cancel", timeout=30).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask_again, range(60))) == {200}


def test_one_under_way_is_not_built_on(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Ok.", wait_before=go_on)]})
    id_ = post(gateway, background=True, tools=[]).json()["id"]
    answer = post(gateway, previous_response_id=id_)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_ended")
    go_on.set()


def test_one_whose_end_fails_has_failed(new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = new_gateway({"m": ["Ok."]})

    def broken(*_: Any) -> None:
        raise RecursionError

    monkeypatch.setattr(ResponseJob, "_end", broken)
    id_ = post(gateway, background=True).json()["id"]
    assert until(lambda: has_ended(gateway, id_))["status"] == "failed"


def test_one_whose_container_cannot_be_measured_completes(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]})

    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Containers, "_bytes", broken)
    id_ = post(gateway, background=True).json()["id"]
    assert until(lambda: has_ended(gateway, id_))["status"] == "completed"


def test_one_whose_start_cannot_be_stored_is_refused(new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = new_gateway({"m": ["Ok."]})

    def locked(*_: Any) -> None:
        raise RowsAway

    monkeypatch.setattr(gateway.services.store, "add", locked)
    assert post(gateway, background=True).status_code == 503
    assert gateway.services.store.count(StoredResponse) == 0


def test_one_that_has_ended_is_not_overwritten_by_who_takes_it_for_lost(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    store = gateway.services.store
    id_ = post(gateway, background=True, tools=[]).json()["id"]
    until(lambda: is_idle(gateway))

    class Late(Store):
        """Has read the response before it ended."""

        def get(self, kind: Any, key: str, **where: Any) -> Any:
            found = super().get(kind, key, **where)
            return replace(found, status="in_progress") if kind is ResponseBody else found

    late = Late(gateway.services.config.database_url, 5.0)
    BackgroundResponses(late)._fail(id_, "lost")
    late.close()
    assert store.get(ResponseHead, id_).status == "completed"


def test_one_that_was_reported_failed_stays_so(new_gateway: NewGateway) -> None:
    may_end = threading.Event()
    gateway = new_gateway({"m": [code("1"), ScriptedReply("Ok.", wait_before=may_end)]})
    store = gateway.services.store
    made = gateway.client().conversations.create().id
    id_ = post(gateway, background=True, conversation=made).json()["id"]
    store.change(StoredResponse, id_, gateway="silent for too long")
    assert retrieve(beside(new_gateway, gateway), id_).json()["status"] == "failed"
    may_end.set()
    until(lambda: is_idle(gateway))
    assert retrieve(gateway, id_).json()["status"] == "failed"
    assert [event["type"] for event in events_of(retrieve(gateway, id_, "?stream=true").text)] == ["response.failed"]
    assert (store.count(StoredItem), store.count(StoredCall), store.count(ConversationItem)) == (0, 0, 0)
