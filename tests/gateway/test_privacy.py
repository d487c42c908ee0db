"""Privacy: what people and code say is in the answer only."""

from __future__ import annotations

import logging

import httpx
import pytest

from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import INCLUDE, ask, code, commands, post, run, shell
from tests.gateway.conftest import NewGateway
from tests.gateway.connections import asked, connected


def test_what_people_and_code_say_is_nowhere_but_in_the_answer(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    gateway = new_gateway(
        {
            "m": [code("print('canary' + '-output')  # canary-code"), ScriptedReply(text="canary-answer"), code("1")],
            "shell": [commands("echo canary''-output; canary-program"), "canary-answer"],
            "chat": [*[run("print('canary' + '-output')"), "canary-answer"] * 2],
            "bad": lambda _: ScriptedReply(calls=[ScriptedCall("python", '{"canary": ')], cut_after=3),
        },
        log_level="debug",
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("openai").setLevel(logging.WARNING)
    logging.getLogger("websockets").setLevel(logging.WARNING)  # the client's
    answer = post(gateway, input="canary-prompt", include=INCLUDE)
    assert "canary-output" in answer.text
    assert "canary-output" in post(gateway, input="canary-prompt", model="shell", tools=[shell()]).text
    post(gateway, input="canary-prompt")  # the script is used up: the upstream fails
    said = [{"role": "user", "content": "canary-prompt"}]
    for is_streamed in (False, True):
        ask(gateway, model="chat", messages=said, stream=is_streamed)
        post(gateway, model="bad", input="canary-prompt", instructions="canary", stream=is_streamed)
    with connected(gateway) as client:
        asked(client, model="bad", input="canary-prompt", instructions="canary", stream_id="canary")
    seen = httpx.get(f"{gateway.url}/metrics").text + capfd.readouterr().err
    seen += "\n".join(record.getMessage() + str(record.exc_info) for record in caplog.records)
    assert "canary" not in seen
    assert 'agent_tools_tool_calls_total{status="completed"}' in seen
