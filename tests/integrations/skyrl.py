"""SkyRL: the example of a group of tools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, STATE, interrupting, load_example


@pytest.mark.stops
def test_the_example_runs(cfg: dict[str, Any]) -> None:
    group = load_example("skyrl_tools").AgentToolsGroup(cfg)
    with group.sandbox:
        assert sorted(group.get_tool_names()) == ["python", "shell"]
        assert "42" in group.execute_tool("python", STATE)
        assert "[a figure]" in group.execute_tool("python", PICTURE)
        assert "out.txt" in group.execute_tool("python", FILE)
        assert group.execute_tool("shell", "cat out.txt") == "42"
        with interrupting(group.sandbox):
            assert "KeyboardInterrupt" in group.execute_tool("python", ENDLESS)
        assert "43" in group.execute_tool("python", AFTER)
        group.sandbox.reset()
        assert "NameError" in group.execute_tool("python", "x")
