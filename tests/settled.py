"""Outputs as a finished run has them."""

from __future__ import annotations

from collections.abc import Iterable

from agent_tools.results.execution import Output
from agent_tools.runtime.kernel.settling import Settling


def settle(outputs: Iterable[Output]) -> tuple[Output, ...]:
    """Settle a complete list of outputs."""
    settling = Settling()
    for output in outputs:
        settling.add(output)
    return settling.outputs
