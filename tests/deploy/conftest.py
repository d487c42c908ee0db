"""Gateways to put something in front of, and the programs for that."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.gateway.conftest import new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "debian_program"


def debian_program(name: str, *packages: str) -> str:
    """The path of a program, which is fetched if it is not here."""
    return subprocess.run([SCRIPT, name, *packages], check=True, capture_output=True, text=True).stdout.strip()
