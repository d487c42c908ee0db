"""Gateways that stop while something is under way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from agent_tools.containers.sandbox_slots import Slots
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.doubles import ProcessEngine
from tests.gateway.asking import SLEEP, STOPPED, code, events_of, has_ended, outputs, post, retrieve, until
from tests.gateway.conftest import NewGateway
from tests.gateway.strict import check_response, check_stream

SHELL = ScriptedReply(calls=[ScriptedCall("shell", {"commands": ["true"]})])


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


def test_streams_are_told_that_the_gateway_stops(new_gateway: NewGateway) -> None:
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
        until(lambda: gateway.services.containers.queue.waiting)
        stopping = pool.submit(gateway.__exit__)
        assert second.result().json()["error"]["code"] == "gateway_stopped"
        go_on.set()
        assert check_stream(events_of(first.result().text))[-1]["type"] == "response.completed"
        stopping.result()


class StuckEngine(ProcessEngine):
    """An engine that starts and removes nothing until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.starts = self.removals = 0
        self.started = threading.Semaphore(0)
        self.removed = threading.Semaphore(0)

    def start(self, spec: SandboxSpec) -> EngineContainer:
        self.starts += 1
        self.go_on.wait()
        try:
            return super().start(spec)
        finally:
            self.started.release()

    def remove(self, sandbox: EngineContainer) -> None:
        self.removals += 1
        self.go_on.wait()
        super().remove(sandbox)
        self.removed.release()


def test_a_stop_does_not_wait_for_an_engine_that_starts_sandboxes(
    new_gateway: NewGateway, process_runtime: Runtime
) -> None:
    engine = StuckEngine()
    runtime = Runtime(engine, lambda packages: "none")
    gateway = new_gateway({"m": [code("1")]}, runtime=runtime, owns_runtime=True, pool=1)
    begun = post(gateway, background=True).json()
    until(lambda: engine.starts == 2)  # the pool's, and the response's
    gateway.__exit__()
    runtime.close_all()  # as the process's end does
    assert engine.processes == {}
    engine.go_on.set()  # what comes up now is removed at once
    assert engine.started.acquire(timeout=60)
    assert engine.started.acquire(timeout=60)
    until(lambda: engine.processes == {})
    again = new_gateway({}, data_dir=gateway.services.config.data_dir)
    body = check_response(retrieve(again, begun["id"]).json())
    assert body.status == "failed"
    assert body.error
    assert body.error.message == STOPPED


def park(places: Slots, id_: str) -> None:
    """Let a container's sandbox make room, as for another one."""
    with places._change:
        ((_, live),) = places._chosen([id_])
    places._park(id_, live)


@pytest.mark.parametrize("call", [code("1"), SHELL])
@pytest.mark.parametrize("has_variables", [False, True])
def test_a_cancel_does_not_wait_for_a_start_which_goes_on_for_the_next_call(
    new_gateway: NewGateway, process_runtime: Runtime, call: ScriptedReply, has_variables: bool
) -> None:
    engine = StuckEngine()
    engine.go_on.set()
    before = [code("1"), ScriptedReply(text="First.")] * has_variables
    script = [*before, call, code("1"), ScriptedReply(text="Last.")]
    runtime = Runtime(engine, lambda packages: "none")
    gateway = new_gateway({"m": script}, runtime=runtime, owns_runtime=True)
    containers = gateway.services.containers
    id_ = httpx.post(f"{gateway.url}/v1/containers", json={"name": "x"}).json()["id"]
    place = {"type": "container_reference", "container_id": id_}
    tools = [{"type": "code_interpreter", "container": id_}, {"type": "shell", "environment": place}]
    if has_variables:
        assert post(gateway, tools=tools).json()["status"] == "completed"
        park(containers.slots, id_)
        assert not containers.running()
    engine.go_on.clear()
    starts = engine.starts
    begun = post(gateway, tools=tools, background=True).json()
    until(lambda: engine.starts > starts)
    httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel")
    assert until(lambda: has_ended(gateway, begun["id"]))["status"] == "cancelled"
    until(lambda: gateway.app.state.jobs.active == 0)
    engine.go_on.set()
    body = post(gateway, tools=tools).json()
    assert (body["status"], outputs(body)[0]["status"]) == ("completed", "completed")
    assert engine.starts == starts + 1


def test_a_stop_does_not_wait_for_an_engine_that_removes_sandboxes(
    new_gateway: NewGateway, process_runtime: Runtime
) -> None:
    engine = StuckEngine()
    engine.go_on.set()
    runtime = Runtime(engine, lambda packages: "none")
    gateway = new_gateway({"m": [code("1"), ScriptedReply(text="One.")]}, runtime=runtime, owns_runtime=True)
    assert post(gateway).json()["status"] == "completed"
    engine.go_on.clear()
    gateway.__exit__()
    runtime.close_all()
    assert engine.removals == 1
    engine.go_on.set()
    assert engine.removed.acquire(timeout=60)
