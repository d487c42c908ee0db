"""The sandboxes of this machine, before and after a test."""

from __future__ import annotations

import subprocess
import time

PATIENCE = 30.0  # seconds until what is on its way out is gone


def containers(owner: int) -> set[str]:
    """The sandboxes of a process of this machine, which may be gone, by its pid."""
    listed = subprocess.run(
        ["docker", "ps", "--no-trunc", "--format", '{{.ID}} {{.Label "agent_tools.owner"}}'],
        check=True,
        capture_output=True,
        text=True,
    )
    found = [line.split() for line in listed.stdout.splitlines()]
    return {words[0] for words in found if words[1:] and words[1].startswith(f"{owner}-")}


def await_gone(owner: int) -> None:
    """Wait until none of them is left."""
    deadline = time.monotonic() + PATIENCE
    while left := containers(owner):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
