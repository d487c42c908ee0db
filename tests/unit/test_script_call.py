"""The requests of a script's runner in the guest."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.runtime.host_calls.function import CallRefused
from agent_tools.runtime.host_calls.script_call import Request, ScriptCall, is_request


def test_arguments_go_in_and_items_and_the_result_come_out() -> None:
    items: list[Any] = []
    call = ScriptCall(([[1], {}], [b"x"]), items.append)
    assert call.answer("$arguments", []) == ([[1], {}], [b"x"])
    assert call.answer("$yield", [2]) == call.answer("$return", [None]) == (None, [])
    assert call.answer("$return", [3]) == (None, [])
    assert (items, call.result) == ([2], 3)


@pytest.mark.parametrize(("request_", "given"), [("$arguments", [1]), ("$yield", []), ("$return", [])])
def test_a_request_with_other_arguments_is_refused(request_: Request, given: list[Any]) -> None:
    with pytest.raises(CallRefused, match=r"\$"):
        ScriptCall((None, []), print).answer(request_, given)


@pytest.mark.parametrize(("name", "expected"), [("$return", True), ("$other", False), ("add", False)])
def test_only_the_runner_s_names_are_requests(name: str, expected: bool) -> None:
    assert is_request(name) is expected
