"""Metrics: bounded series, and the events that an operator wants to know of."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import anyio.to_thread
import httpx
import pytest

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.api_errors import SecurityEvent
from agent_tools.gateway.telemetry import Metrics
from agent_tools.models.base import Usage
from agent_tools.results.execution import Died, Execution, Stream
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.fake_kernel import ATTACK, FakeEngine, Turn
from tests.gateway.asking import EVENTS, KEYS, code, post, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.in_loop import serving, until_true

ENOUGH = 30.0  # seconds


def test_what_strangers_send_makes_no_series(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []}, api_keys=KEYS)

    client = httpx.Client(base_url=gateway.url)

    def lines(numbers: range) -> int:
        for number in numbers:
            for path in ("/v1/models", f"/invented/{number}", "/health"):
                client.request(f"INVENTED{number}", path)
        text = client.get("/metrics").text
        assert "invented" not in text.lower()
        return len(text.splitlines())

    with client:
        assert lines(range(2)) < lines(range(2)) == lines(range(50))
    found = gateway.services.metrics.registry.get_sample_value
    labels = {"method": "other", "route": "health", "status": "405"}
    assert found("agent_tools_requests_total", labels) == 54
    assert found(EVENTS, {"event": "unknown_key"}) == 54


def test_metrics_are_rendered_one_at_a_time_and_keep_no_thread_of_others(
    process_runtime: Runtime, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(GatewayConfig("http://127.0.0.1:1", data_dir=work_dir), process_runtime) as (client, app):
            services, may_go_on, asked = app.state.services, threading.Event(), list[int]()

            def hanging(_: Path) -> int:
                asked.append(threading.get_ident())
                may_go_on.wait(ENOUGH)
                return 1

            monkeypatch.setattr(services.shares, "free", hanging)
            services.metrics.readiness({})
            shared = anyio.to_thread.current_default_thread_limiter()
            scrapes = [asyncio.ensure_future(client.get("/metrics")) for _ in range(3)]
            await until_true(lambda: asked)
            assert (len(asked), shared.borrowed_tokens) == (1, 0)
            may_go_on.set()
            assert [(await each).status_code for each in scrapes] == [200, 200, 200]
            assert threading.get_ident() not in asked

    asyncio.run(main())


def test_every_security_event_is_there_before_it_happens(new_gateway: NewGateway) -> None:
    text = httpx.get(f"{new_gateway({}).url}/metrics").text
    found = dict(re.findall(r'^agent_tools_security_events_total\{event="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert found == dict.fromkeys(get_args(SecurityEvent), "0.0")


def test_sandboxes_made_ahead_are_counted_by_what_became_of_them(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(1)"), ScriptedReply(text="Ok.")]}, pool=1, preload=("colorsys",))
    runtime = gateway.services.runtime
    deadline = time.monotonic() + ENOUGH
    while not runtime.pools.ready and time.monotonic() < deadline:
        time.sleep(0.01)
    assert post(gateway).status_code == 200
    text = httpx.get(f"{gateway.url}/metrics").text
    found = dict(re.findall(r'^agent_tools_pool_takes_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert found == {"hit": "1.0", "empty": "0.0", "failed": "0.0", "folder": "0.0", "ended": "0.0"}
    assert re.search(r"^agent_tools_pool_ready \d", text, re.MULTILINE)


FILLS = "import time\nopen('big', 'wb').write(bytes(5_000_000))\ntime.sleep(60)"


def counted(metrics: Metrics) -> dict[str, float]:
    """The events that happened."""
    found = {
        sample.labels["event"]: sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "agent_tools_security_events_total"
    }
    return {event: value for event, value in found.items() if value}


def noise(turn: Turn) -> None:
    turn.wire.send_bytes(b"\xff" * 1000)


def run_code(gateway: Gateway, script: str, is_on_the_page: bool) -> None:
    if is_on_the_page:
        assert "The kernel died" in httpx.post(f"{gateway.url}/page/run", json={"code": script}, timeout=60).text
    else:
        assert post(gateway).status_code == 200


@pytest.mark.parametrize("is_on_the_page", [True, False])
def test_code_that_fills_its_container_is_counted(new_gateway: NewGateway, is_on_the_page: bool) -> None:
    gateway = new_gateway({"m": [code(FILLS), ScriptedReply(text="Ok.")]}, max_container_bytes=2**20)
    run_code(gateway, FILLS, is_on_the_page)
    assert counted(gateway.services.metrics) == {"work_dir_quota": 1}


@pytest.mark.parametrize("is_on_the_page", [True, False])
def test_code_that_breaks_its_kernels_protocol_is_counted(new_gateway: NewGateway, is_on_the_page: bool) -> None:
    runtime = Runtime(FakeEngine(noise), lambda packages: "none")
    gateway = new_gateway({"m": [code(ATTACK), ScriptedReply(text="Ok.")]}, runtime)
    run_code(gateway, ATTACK, is_on_the_page)
    assert counted(gateway.services.metrics) == {"protocol_violation": 1}
    runtime.close_all()


def test_code_that_dies_of_anything_else_is_no_security_event() -> None:
    metrics = Metrics(dict)
    metrics.ended(Execution((Stream("stdout", "it filled work_dir"), Died("it filled work_dir"))))
    assert counted(metrics) == {}
    metrics.ended(Execution((Died("anything", "work_dir_quota"),)))
    assert counted(metrics) == {"work_dir_quota": 1}


def test_who_waits_for_a_sandbox_is_counted_with_the_time(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    replies = [ScriptedReply(text="One.", wait_midway=go_on), ScriptedReply(text="Two.")]
    gateway = new_gateway({"m": replies}, max_sandboxes=1, max_kept_sandboxes=1)
    found = gateway.services.metrics.registry.get_sample_value
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, gateway)
        until(lambda: gateway.upstream.requests)
        second = pool.submit(post, gateway)
        until(lambda: found("agent_tools_queue") == 1)
        go_on.set()
        assert first.result().status_code == second.result().status_code == 200
    assert found("agent_tools_queue") == 0
    assert found("agent_tools_queue_seconds_count") == 2
    assert (found("agent_tools_queue_seconds_sum") or 0) > 0


def test_tokens_and_requests_are_counted_by_the_name_of_their_key(new_gateway: NewGateway) -> None:
    reply = ScriptedReply(text="Ok.", usage=Usage(input_tokens=7, output_tokens=3))
    gateway = new_gateway({"m": lambda _: reply}, api_keys=KEYS)
    gateway.client(KEYS[1]).responses.create(model="m", input="Go.")
    found = gateway.services.metrics.registry.get_sample_value
    assert found("agent_tools_tokens_total", {"key": "setting-2", "kind": "input"}) == 7
    assert found("agent_tools_tokens_total", {"key": "setting-2", "kind": "output"}) == 3
    assert found("agent_tools_key_requests_total", {"key": "setting-2", "end": "2xx"}) == 1
    assert not {key for key in KEYS if key in gateway.services.metrics.text().decode()}


def test_the_process_itself_is_measured(new_gateway: NewGateway) -> None:
    text = httpx.get(f"{new_gateway({}).url}/metrics").text
    assert float(re.findall(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)[0]) > 1e6


def test_a_turn_that_an_error_ends_has_failed(new_gateway: NewGateway) -> None:
    bad = ScriptedReply(status=500, error="out of order")
    gateway = new_gateway({"m": [code("1"), *[bad] * 9], "ok": lambda _: ScriptedReply(text="Ok.")})
    assert post(gateway).status_code == 500
    assert post(gateway, model="ok").status_code == 200
    found = gateway.services.metrics.registry.get_sample_value
    assert [found("agent_tools_turns_total", {"end": end}) for end in ("failed", "stop")] == [1, 1]
