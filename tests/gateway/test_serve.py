"""Checks before a gateway starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.serve import problems, serve
from agent_tools.runtime.runtime import Runtime


def test_what_is_missing_is_told_before_the_start(process_runtime: Runtime, work_dir: Path) -> None:
    config = GatewayConfig("http://127.0.0.1:9/v1", data_dir=work_dir / "d", database="postgresql+nodriver://h/d")
    (problem,) = problems(config, process_runtime)
    assert "does not answer" in problem
    with pytest.raises(InvalidParams, match="database cannot be used"):
        serve(config, process_runtime)
