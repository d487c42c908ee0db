"""Answers without active content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools.jupyter.answers import ClientMessage
from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.plain import plainly
from agent_tools.jupyter.served_kernel import ServedKernel
from agent_tools.runtime.runtime import Runtime
from tests.unit.jupyter.talking import talking

BOTH = {"text/html": "<b>", "text/plain": "b", "application/javascript": "x"}


def plain(kind: str, values: dict[str, Any]) -> Any:
    """The content that is left of one."""
    answer = plainly(ClientMessage(kind, json.dumps(values).encode(), values))
    assert answer
    assert json.loads(answer.content) == answer.values
    return answer.values


@pytest.mark.parametrize("kind", ["display_data", "update_display_data", "execute_result", "inspect_reply"])
def test_active_representations_are_left_out(kind: str) -> None:
    assert plain(kind, {"data": BOTH, "metadata": {}}) == {"data": {"text/plain": "b"}, "metadata": {}}


def test_what_is_left_out_whole_is_named() -> None:
    assert plain("display_data", {"data": {"text/html": "<b>"}})["data"] == {"text/plain": "[left out: text/html]"}
    assert plain("inspect_reply", {"data": {}})["data"] == {}


def test_pages_and_expressions_are_plain_as_well() -> None:
    reply = {"payload": [{"source": "page", "data": BOTH}, "odd"], "user_expressions": {"x": {"data": BOTH}, "y": 1}}
    found = plain("execute_reply", reply)
    assert found["payload"] == [{"source": "page", "data": {"text/plain": "b"}}, "odd"]
    assert found["user_expressions"] == {"x": {"data": {"text/plain": "b"}}, "y": 1}


def test_an_answer_with_a_number_that_json_does_not_have_is_left_out() -> None:
    values = {"data": {**BOTH, "application/json": float("inf")}, "metadata": {"number": float("inf")}}
    assert plainly(ClientMessage("display_data", b"{}", values)) is None


@pytest.mark.parametrize(
    "values", [{"data": []}, {"data": None}, {"payload": 1, "user_expressions": []}, {"text": "x"}]
)
def test_all_else_stays_as_it_is(values: dict[str, Any]) -> None:
    assert plain("stream", values) == values


def test_comms_are_nobodys() -> None:
    assert plainly(ClientMessage("comm_open", b"{}", {})) is None


def test_a_plain_kernel_shows_no_html(process_runtime: Runtime, info: ConnectionInfo) -> None:
    served = ServedKernel({}, process_runtime, is_plain=True)
    served.start(info)
    with talking(info.as_dict()) as talk:
        ran = talk.run("from IPython.display import HTML, display\ndisplay(HTML('<script>'))\n1")
        data = [message["content"]["data"] for message in ran.published if "data" in message["content"]]
    served.close()
    assert [set(each) for each in data] == [{"text/plain"}, {"text/plain"}]
