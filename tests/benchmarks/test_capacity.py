"""The plan for a load, and the simulation behind it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from capacity import Node, Session, arrivals_at, plan, poisson_tail, pool_for, waits


@pytest.mark.parametrize(("day", "live", "nodes"), [(10_000, 100, 2), (100_000, 1_000, 4), (1_000_000, 10_000, 25)])
def test_the_plans_of_the_page(day: int, live: int, nodes: int) -> None:
    assert plan(day / 86_400 * 3, live, Session(), Node()).nodes == nodes


def test_more_of_anything_needs_no_fewer_nodes() -> None:
    least = plan(10, 1_000, Session(), Node()).nodes
    assert plan(100, 1_000, Session(), Node()).nodes > least
    assert plan(10, 10_000, Session(), Node()).nodes > least
    assert plan(10, 1_000, Session(working=2_000), Node()).nodes > least
    assert plan(10, 1_000, Session(call_core=10), Node()).nodes > least


def test_the_tail_of_a_poisson_distribution() -> None:
    assert poisson_tail(1.0, 0) == 1.0
    assert poisson_tail(1.0, 1) == pytest.approx(0.6321, abs=1e-4)
    assert poisson_tail(1.0, 2) == pytest.approx(0.2642, abs=1e-4)


def test_a_pool_of_the_planned_size_is_as_rarely_empty_as_was_asked() -> None:
    rate, make = 1.4, 0.5
    size = pool_for(rate, make, 0.01)
    waited = waits(arrivals_at(rate, 100_000), make, 100, size)
    assert sum(wait > 0 for wait in waited) / len(waited) < 0.011
    fewer = waits(arrivals_at(rate, 100_000), make, 100, size - 1)
    assert sum(wait > 0 for wait in fewer) / len(fewer) > 0.01


def test_a_burst_waits_for_what_is_not_warm() -> None:
    assert waits([0.0] * 16, 0.5, 4, 16)[-1] == 0.0
    assert waits([0.0] * 16, 0.5, 4, 0)[-1] == pytest.approx(2.0)
    assert waits([0.0] * 16, 0.5, 4, 8)[-1] == pytest.approx(1.0)
