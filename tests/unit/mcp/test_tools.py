"""The arguments of tools."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.mcp.tools import MAX_ARGUMENTS, TOOLS


def test_unknown_arguments_are_named_and_many_cost_a_multiple_of_their_bytes() -> None:
    with pytest.raises(InvalidParams, match="Invalid arguments for wait: b: Extra inputs"):
        TOOLS["wait"].read("wait", {"b": 1})
    many = dict.fromkeys(map(str, range(20_000)), 1)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidParams, match=f"more than {MAX_ARGUMENTS}"):
            TOOLS["wait"].read("wait", many)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(json.dumps(many))
