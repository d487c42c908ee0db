"""Processes of a session."""

from __future__ import annotations

from agent_tools.wires.codex.processes import EVENT, KEPT, Log


def test_output_in_small_pieces_is_kept_within_bounds() -> None:
    log = Log(None, takes_input=False)
    for _ in range(20_000):
        log.add("stdout", b"x")
    assert len(log.chunks) == KEPT // (EVENT + 1)
    assert log.size == len(log.chunks) * (EVENT + 1)
