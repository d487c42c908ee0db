"""The limits and the reach of a gateway's container, as seen by code inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedServer
from tests.docker.test_gateway import _url, end
from tests.gateway.asking import INCLUDE, SLEEP, STOPPED, code, events_of, outputs, post, stream, until
from tests.gateway.conftest import NewGateway, new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]
pytestmark = pytest.mark.docker

TAKE = "taken = bytearray(1100 * 2**20)\nfor n in range(0, len(taken), 4096): taken[n] = 1\nprint(len(taken) >> 20)"
LOOK = """
import os, socket
found = [open(p).read().strip() for p in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
         if os.path.exists(p)]
print(found[0])
print(sorted(os.listdir("/sys/class/net")))
for family, address in ((socket.AF_INET, ("1.1.1.1", 53)), (socket.AF_INET6, ("2606:4700:4700::1111", 53))):
    try:
        socket.socket(family).connect(address)
    except OSError:
        print("unreachable")
try:
    socket.getaddrinfo("example.org", 80)
except OSError:
    print("unknown")
"""


@pytest.mark.parametrize(("tier", "can"), [("1g", False), ("4g", True)])
def test_a_container_takes_as_much_memory_as_its_tier_gives(
    new_gateway: NewGateway, docker_runtime: Runtime, tier: str, can: bool
) -> None:
    gateway = new_gateway({"m": [code(TAKE), code("1 + 1"), "Ok."]}, docker_runtime)
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": tier}}]
    body = post(gateway, tools=tools, include=INCLUDE).json()
    took, after = outputs(body)
    is_refused = took["status"] == "failed" or "MemoryError" in took["outputs"][-1]["logs"]
    assert is_refused is not can
    assert took["outputs"] == [{"type": "logs", "logs": "1100\n"}] or not can
    assert after["outputs"][-1] == {"type": "logs", "logs": "2"}
    assert body["tools"] == tools


def test_the_limit_is_the_tiers_and_there_is_no_network(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    gateway = new_gateway({"m": [code(LOOK), "Ok.", code(LOOK), "Ok."]}, docker_runtime)
    for tier, limit in (("1g", 2**30), ("4g", 2**32)):
        container = gateway.client().containers.create(
            name="a",
            memory_limit=tier,
            network_policy={"type": "disabled"},  # type: ignore[arg-type]
        )
        body = post(gateway, tools=[{"type": "code_interpreter", "container": container.id}], include=INCLUDE).json()
        lines = outputs(body)[0]["outputs"][0]["logs"].splitlines()
        assert lines == [str(limit), "['lo']", "unreachable", "unreachable", "unknown"]


def test_a_tier_above_the_operators_is_refused(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    gateway = new_gateway({}, docker_runtime)
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "16g"}}]
    error = post(gateway, tools=tools).json()["error"]
    assert error["param"] == "tools[0].container.memory_limit"
    assert error["message"] == "memory_limit '16g' is not available here: use 1g, 4g."


def test_code_without_end_is_over_soon_after_its_time(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    endless = code("x = 5\nwhile True: pass")
    gateway = new_gateway({"m": [code("1"), endless, code("x"), "Ok."]}, docker_runtime, timeout=1.0)
    events = stream(gateway, include=INCLUDE)
    _, slow, after = outputs(events[-1]["response"])
    assert (slow["status"], after["outputs"]) == ("failed", [{"type": "logs", "logs": "5"}])
    seconds = gateway.services.metrics.registry.get_sample_value("agent_tools_code_seconds_sum")
    assert seconds is not None
    assert 1 <= seconds < 4  # the time limit, and what the tool promises beyond it


def test_a_gateway_that_was_killed_leaves_no_response_under_way(work_dir: Path, docker_engine: DockerEngine) -> None:
    with ScriptedServer({"m": lambda _: code(SLEEP)}) as upstream:
        url, process = serve(work_dir, upstream.base_url, "first")
        body: dict[str, Any] = {"model": "m", "input": "Go.", "background": True}
        body["tools"] = [{"type": "code_interpreter", "container": {"type": "auto"}}]
        id_ = httpx.post(f"{url}/v1/responses", json=body, timeout=60).json()["id"]
        until(lambda: httpx.get(f"{url}/v1/responses/{id_}").json()["status"] == "in_progress")
        process.kill()
        process.wait(10)
        url, process = serve(work_dir, upstream.base_url, "second")
        try:
            found = httpx.get(f"{url}/v1/responses/{id_}").json()
            (last,) = events_of(httpx.get(f"{url}/v1/responses/{id_}?stream=true&starting_after=3").text)
        finally:
            end(process)
    assert (found["status"], found["error"]["message"]) == ("failed", STOPPED)
    assert (last["type"], last["response"]) == ("response.failed", found)
    until(lambda: not [s for s, labels in docker_engine.strays({}) if _owner(process) in str(labels)])


def serve(work_dir: Path, upstream: str, name: str) -> tuple[str, subprocess.Popen[bytes]]:
    """A gateway in a process of its own."""
    log = work_dir / name
    command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", upstream, "--port", "0"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, "--data-dir", str(work_dir / "data")], env=os.environ, stdout=output, stderr=output
        )
    return _url(log, process), process


def _owner(process: subprocess.Popen[bytes]) -> str:
    return f"{process.pid}-"
