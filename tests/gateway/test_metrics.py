"""Metrics: bounded series, and the events that an operator wants to know of."""

from __future__ import annotations

import re
import time
from typing import get_args

import httpx
import pytest

from agent_tools.execution import Died, Execution, Stream
from agent_tools.gateway.metrics import Metrics
from agent_tools.gateway.requests.failures import SecurityEvent
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.fake_kernel import ATTACK, FakeEngine, Turn
from tests.gateway.asking import EVENTS, KEYS, code, post
from tests.gateway.conftest import Gateway, NewGateway

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
