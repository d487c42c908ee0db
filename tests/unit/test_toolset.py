"""The values that a toolset takes for tools, host functions and plain functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent_tools.code_mode import Policy, Toolset
from agent_tools.code_mode.functions import ToolFunction, TypedFunction


def clock() -> float:
    return 0.0


# attributes of a tool's and a host function's names, which mean something else here
vars(clock).update(policy="monotonic", function={"unit": "s"}, call=clock)


class Lookup:
    """A tool of another framework, with the attributes of ours."""

    function: Mapping[str, Any] = {
        "name": "look_up",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    }

    def call(self, params: str) -> str:
        return params


class Greeting:
    """A host function that somebody wrote."""

    name = "greet"

    def __init__(self) -> None:
        self.policy = Policy(max_calls=1)

    async def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return "hello"


@pytest.mark.parametrize(
    ("value", "name", "kind"),
    [(Lookup(), "look_up", ToolFunction), (Greeting(), "greet", Greeting), (clock, "clock", TypedFunction)],
    ids=["tool", "host function", "plain function"],
)
def test_a_value_is_told_by_its_definition_or_its_policy(value: Any, name: str, kind: type) -> None:
    tools = Toolset()
    tools.add(value)
    assert type(tools.functions[name]) is kind


def test_a_host_function_keeps_its_policy_unless_it_gets_another() -> None:
    tools, other = Toolset([Greeting()]), Toolset()
    assert tools.functions["greet"].policy.max_calls == 1
    other.add(Greeting(), policy=Policy(max_calls=2))
    assert other.functions["greet"].policy.max_calls == 2
