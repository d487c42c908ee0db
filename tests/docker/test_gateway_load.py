"""Many streams at once on real sandboxes, with the limits that a gateway has by default."""

from __future__ import annotations

import json
import uuid
from typing import Any

import anyio
import openai
import pytest

from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, INCLUDE, code, outputs
from tests.gateway.conftest import NewGateway, new_gateway, process_runtime
from tests.gateway.strict import check_stream

__all__ = ["new_gateway", "process_runtime"]
pytestmark = pytest.mark.docker

STREAMS = {"containers": 10, "processes": 24}  # more than may run at once
CALLS = (
    "name = {0!r}; seen = [0]; print(name)",
    "seen.append(1); print({0!r}, name)",
    "seen.append(2); print({0!r}, seen)",
)


def obey(request: dict[str, Any]) -> ScriptedReply:
    """Three calls with the name that the user gave, then an answer with it."""
    name = next(message["content"] for message in request["messages"] if message["role"] == "user")
    made = sum(message["role"] == "tool" for message in request["messages"])
    return code(CALLS[made].format(name)) if made < len(CALLS) else ScriptedReply(text=f"{name} is done.")


@pytest.mark.parametrize("kind", STREAMS)
def test_many_streams_with_three_calls_each_do_not_mix(
    new_gateway: NewGateway, docker_runtime: Runtime, process_runtime: Runtime, kind: str
) -> None:
    gateway = new_gateway({"m": obey}, docker_runtime if kind == "containers" else process_runtime)

    async def one(client: openai.AsyncOpenAI, name: str) -> str:
        asked: Any = {"model": "m", "input": name, "tools": [CODE_TOOL], "include": INCLUDE, "stream": True}
        events = await client.responses.create(**asked)
        found = check_stream([json.loads(event.to_json(exclude_unset=True)) async for event in events])
        body = found[-1]["response"]
        logs = [call["outputs"][0]["logs"] for call in outputs(body)]
        assert logs == [f"{name}\n", f"{name} {name}\n", f"{name} [0, 1, 2]\n"]
        assert body["output"][-1]["content"][0]["text"] == f"{name} is done."
        (container,) = {call["container_id"] for call in outputs(body)}
        return str(container)

    containers: list[str] = []

    async def all_of_them() -> None:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=120, max_retries=0)

        async def keep(name: str) -> None:
            containers.append(await one(client, name))

        async with client, anyio.create_task_group() as group:
            for _ in range(STREAMS[kind]):
                group.start_soon(keep, str(uuid.uuid4()))

    anyio.run(all_of_them)
    assert len(set(containers)) == STREAMS[kind]
    assert len(gateway.services.containers.running()) <= gateway.services.config.max_kept_sandboxes
