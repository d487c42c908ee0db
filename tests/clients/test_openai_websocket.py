"""`openai` for Python by WebSocket, as it is, before the gateway."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types.responses import Response

from agent_tools.testing import ScriptedReply
from tests.clients.conversation import CODE_TOOL, INCLUDE, check_upstream, serve
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_response

TOOLS = {"model": "m", "tools": [CODE_TOOL], "include": INCLUDE, "store": False}


def two_turns(gateway: Gateway) -> list[Response]:
    found: list[Response] = []
    with gateway.client().responses.connect() as connection:
        connection.response.create(input="Go.", **TOOLS)  # type: ignore[arg-type]
        for event in connection:
            if event.type == "response.completed":
                found.append(event.response)
                if len(found) == 2:
                    break
                connection.response.create(input="And now?", previous_response_id=found[0].id, **TOOLS)  # type: ignore[arg-type]
    return found


async def two_turns_async(gateway: Gateway) -> list[Response]:
    found: list[Response] = []
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(input="Go.", **TOOLS)  # type: ignore[arg-type]
        async for event in connection:
            if event.type == "response.completed":
                found.append(event.response)
                if len(found) == 2:
                    break
                more = {"previous_response_id": found[0].id, **TOOLS}
                await connection.response.create(input="And now?", **more)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("is_async", [False, True])
def test_two_turns_share_a_container(new_gateway: NewGateway, is_async: bool) -> None:
    gateway = serve(new_gateway)
    first, second = asyncio.run(two_turns_async(gateway)) if is_async else two_turns(gateway)
    check_upstream(gateway)
    for response in (first, second):
        check_response(response.to_dict())
    assert first.output[0].container_id == second.output[0].container_id  # type: ignore[union-attr]
    assert second.output_text == "21."


def test_a_refusal_is_an_error_with_its_status(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(status=429, error="Slow down.")})
    with gateway.client().responses.connect() as connection:
        connection.response.create(model="m", input="Go.")
        *_, last = (connection.recv() for _ in range(3))
    assert last.type == "error"
    assert (last.status, last.error.message) == (429, "Slow down.")  # type: ignore[union-attr]
