"""The readers, one a file, by name. Each is imported when it is asked for: a fuzzer has to be there before."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.fuzz.oracle import Target

NAMES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))


def target(name: str) -> Target:
    """A reader and what it may cost."""
    found: Target = importlib.import_module(f"{__name__}.{name}").TARGET
    return found
