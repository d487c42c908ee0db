"""The JavaScript clients, as they are, before the gateway. What each does is in `node/`; it reports as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conversation import CODE_AND_FUNCTION, FIRST, LINK, SECOND, check_both_told, check_upstream, serve
from tests.gateway.asking import code
from tests.gateway.conftest import Gateway, NewGateway

SCRIPTS = Path(__file__).parent / "node"
NODE = Path(sys.executable).with_name("node")
TEXT = f"Twenty, see {LINK}."
LOGS = {"type": "logs", "logs": "x is 20\n"}
BEGINNING = ["response.created", "response.in_progress", "response.output_item.added"]
CALL_EVENTS = [
    *("response.code_interpreter_call.in_progress", "response.code_interpreter_call_code.delta"),
    *("response.code_interpreter_call_code.done", "response.code_interpreter_call.interpreting"),
    *("response.code_interpreter_call.completed", "response.output_item.done"),
]


def report_of(gateway: Gateway, script: str, *args: str) -> Any:
    assert (SCRIPTS / "node_modules").is_dir(), "run scripts/lib/node first"
    environment = {"OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "any"}
    command = [NODE, SCRIPTS / script, *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def in_order(kinds: list[str]) -> list[str]:
    """Return which kinds there are, by their first place."""
    return list(dict.fromkeys(kinds))


def check_citation(cited: dict[str, Any], container_id: str) -> None:
    assert (cited["type"], cited["filename"]) == ("container_file_citation", "twenty.txt")
    assert cited["container_id"] == container_id
    assert TEXT[cited["start_index"] : cited["end_index"]] == "sandbox:/mnt/data/twenty.txt"


def test_openai_node_in_two_turns(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    report = report_of(gateway, "openai_client.mjs", "turns")
    check_upstream(gateway)
    kinds = in_order(report["kinds"])
    assert kinds[:9] == [*BEGINNING, *CALL_EVENTS]
    assert kinds[-1] == "response.completed"
    call, message = report["first"]["output"]
    assert (call["status"], call["code"], call["outputs"][0]) == ("completed", FIRST, LOGS)
    assert call["outputs"][1]["url"].startswith("data:image/png;base64,")
    assert report["first"]["output_text"] == TEXT
    check_citation(message["content"][0]["annotations"][0], call["container_id"])
    again = report["second"]["output"][0]
    assert (again["code"], again["outputs"]) == (SECOND, [{"type": "logs", "logs": "21"}])
    assert again["container_id"] == call["container_id"]
    assert report["second"]["output_text"] == "21."


def test_openai_node_by_websocket(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    report = report_of(gateway, "openai_client.mjs", "socket")
    check_upstream(gateway)
    assert in_order(report["kinds"])[:9] == [*BEGINNING, *CALL_EVENTS]
    call, message = report["first"]["output"]
    assert (call["code"], call["outputs"][0]) == (FIRST, LOGS)
    check_citation(message["content"][0]["annotations"][0], call["container_id"])
    again = report["second"]["output"][0]
    assert (again["outputs"], again["container_id"]) == ([{"type": "logs", "logs": "21"}], call["container_id"])


def test_openai_node_with_files(new_gateway: NewGateway) -> None:
    copy = "text = open('in.csv').read(); open('out.csv', 'w').write(text.upper())"
    gateway = new_gateway({"m": [code(copy), "See sandbox:/mnt/data/out.csv"]})
    report = report_of(gateway, "openai_client.mjs", "files")
    assert report["given"]["bytes"] == 8
    assert sorted(report["paths"]) == ["/mnt/data/in.csv", "/mnt/data/out.csv"]
    assert report["written"] == "A,B\n1,2\n"
    assert report["gone"]["status"] == 404


def test_openai_node_in_the_background(new_gateway: NewGateway) -> None:
    report = report_of(new_gateway({"m": [code("6 * 7"), "42."]}), "openai_client.mjs", "background")
    assert report["queued"] in ("queued", "in_progress")
    assert report["polled"]["status"] == "completed"
    assert report["polled"]["output"][-1]["content"][0]["text"] == "42."
    numbers = report["numbers"]
    assert len(numbers) > 10
    assert numbers == list(range(2, 2 + len(numbers)))


def test_openai_node_is_refused_in_its_own_words(new_gateway: NewGateway) -> None:
    report = report_of(new_gateway({}), "openai_client.mjs", "refused")
    place = {"param": "tools[0].container", "code": "missing_required_parameter"}
    assert report == {"isApiError": True, "status": 400, **place}


@pytest.mark.parametrize("mode", ["run", "streamed"])
def test_openai_agents_for_javascript(new_gateway: NewGateway, mode: str) -> None:
    gateway = serve(new_gateway)
    report = report_of(gateway, "agents_sdk.mjs", mode)
    check_upstream(gateway)
    call, message = report["first"]["items"]
    ran = call["providerData"]
    assert (call["type"], call["status"], call["name"]) == ("hosted_tool_call", "completed", "code_interpreter_call")
    assert (ran["code"], ran["outputs"][0]) == (FIRST, LOGS)
    assert report["first"]["text"] == TEXT
    assert report["first"]["tokens"] == 30
    check_citation(message["content"][0]["providerData"]["annotations"][0], ran["container_id"])
    again = report["second"]["items"][0]["providerData"]
    assert (again["code"], again["outputs"]) == (SECOND, [{"type": "logs", "logs": "21"}])
    assert again["container_id"] == ran["container_id"]
    assert report["second"]["text"] == "21."
    if mode == "streamed":
        kinds = in_order(report["first"]["kinds"])
        assert [kind for kind in kinds if kind in CALL_EVENTS] == CALL_EVENTS
        assert kinds[-3:] == ["response.completed", "tool_called", "message_output_created"]


def test_vercels_ai_sdk_in_two_turns(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    report = report_of(gateway, "ai_sdk.mjs", "turns")
    check_upstream(gateway)
    parts = report["parts"]
    assert in_order([part["type"] for part in parts]) == [
        *("start", "tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result"),
        *("text-start", "text-delta", "source", "text-end", "finish"),
    ]
    pieces = [part["delta"] for part in parts if part["type"] == "tool-input-delta"]
    (call,) = [part for part in parts if part["type"] == "tool-call"]
    assert len(pieces) > 10
    assert json.loads("".join(pieces)) == call["input"]
    assert call["input"]["code"] == FIRST
    (result,) = [part for part in parts if part["type"] == "tool-result"]
    assert result["output"]["outputs"][0] == LOGS
    assert "".join(part["text"] for part in parts if part["type"] == "text-delta") == TEXT
    (said,) = [part for part in parts if part["type"] == "text-end"]
    check_citation(said["providerMetadata"]["openai"]["annotations"][0], call["input"]["containerId"])
    (source,) = [part for part in parts if part["type"] == "source"]
    assert source["filename"] == "twenty.txt"

    again, shown, last = report["second"]["content"]
    assert again["input"] == {"code": SECOND, "containerId": call["input"]["containerId"]}
    assert shown["output"] == {"outputs": [{"type": "logs", "logs": "21"}]}
    assert last["text"] == "21."
    assert report["second"]["usage"]["totalTokens"] == 30
    assert report["warnings"] == []


def test_vercels_ai_sdk_with_code_and_a_function_in_one_turn(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": CODE_AND_FUNCTION})
    report = report_of(gateway, "ai_sdk.mjs", "steps")
    check_both_told(gateway)
    first, second = report["steps"]
    assert first == ["text", "tool-call", "tool-result", "tool-call", "tool-result"]
    assert (second, report["text"]) == (["text"], "Take an umbrella.")
