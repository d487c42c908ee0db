"""Sets of host functions: what adding one changes."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.code_mode import Policy, Toolset
from agent_tools.code_mode.functions import SchemaFunction
from agent_tools.code_mode.hints import NotCrossing

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}


def host_function(name: str, schema: dict[str, Any]) -> SchemaFunction:
    async def call(given: dict[str, Any]) -> None: ...

    return SchemaFunction(name, "", {"properties": {"at": schema}}, call)


def test_a_policy_given_to_one_toolset_does_not_hold_in_another() -> None:
    shared, first, second = host_function("draw", POINT), Toolset(), Toolset()
    first.add(shared, policy=Policy(approve=lambda request: False))
    second.add([shared], policy=Policy(max_calls=1))
    assert first.functions["draw"].policy.approve
    assert second.functions["draw"].policy == Policy(max_calls=1)
    assert shared.policy == Policy()


def test_a_function_that_is_refused_is_not_added() -> None:
    tools = Toolset([host_function("draw", POINT)])
    with pytest.raises(NotCrossing, match="DrawAt means two different things"):
        tools.add(host_function("DrawAt", {}))
    assert list(tools.functions) == ["draw"]
    tools.add(host_function("erase", POINT))
