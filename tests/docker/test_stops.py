"""Rows of the table of `benchmarks/stops.py`: ways to run something, each stopped in each way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from stops import STOPS, row

from agent_tools.runtime.runtime import Runtime

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("way", ["asyncio.run, loop", "ProcessPoolExecutor", "a host function"])
def test_what_is_stopped_is_told_and_ends_and_keeps_the_state(docker_runtime: Runtime, way: str) -> None:
    cells = row(way, STOPS, docker_runtime)
    assert {stop: cell.wrong for stop, cell in cells.items() if cell.wrong} == {}
