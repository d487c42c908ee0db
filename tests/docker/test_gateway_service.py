"""Containers that are kept, stopped and used by another gateway, on real sandboxes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import INCLUDE, beside, code, in_container, outputs, post, until
from tests.gateway.conftest import Gateway, NewGateway, new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]
pytestmark = pytest.mark.docker

TICKS = """
import threading, time
seen = []
def tick():
    while True:
        seen.append(time.monotonic())
        time.sleep(0.05)
threading.Thread(target=tick, daemon=True).start()
"""
LONGEST_GAP = "time.sleep(0.2); print(max(after - before for before, after in zip(seen, seen[1:])) > 1.5)"


def obey(request: dict[str, Any]) -> ScriptedReply:
    last = request["messages"][-1]
    return code(last["content"]) if last["role"] == "user" else ScriptedReply(text="Ok.")


def run(gateway: Gateway, container: str, text: str) -> str:
    answer = post(gateway, tools=in_container(container), input=text, include=INCLUDE).json()
    return "".join(each["logs"] for call in outputs(answer) for each in call["outputs"])


def test_an_idle_sandbox_stands_still_until_its_next_call(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    gateway = new_gateway({"m": obey}, docker_runtime, idle_stop=1.0)
    id_ = gateway.client().containers.create(name="c").id
    run(gateway, id_, TICKS)
    session = gateway.services.containers.slots._live[id_].sandbox._opening.session()
    until(lambda: session.recovery.sandbox._idle.is_stopped)
    threading.Event().wait(2.0)
    assert run(gateway, id_, LONGEST_GAP) == "True\n"


def test_a_container_goes_to_another_gateway_with_its_variables_and_files(
    new_gateway: NewGateway, docker_runtime: Runtime
) -> None:
    one = new_gateway({"m": obey}, docker_runtime)
    two = beside(new_gateway, one, runtime=docker_runtime)
    id_ = one.client().containers.create(name="c").id
    run(one, id_, "x = 1; open('kept', 'w').write('k')")
    one.services.containers.close()  # as when it stops: variables are saved
    assert run(two, id_, "x += 1; print(x, open('kept').read())") == "2 k\n"
