"""The work of Python code, counted: it does not depend on how busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def opcodes(work: Callable[[], object]) -> int:
    """Return the number of the interpreter's steps; work within one step, such as a long copy, is not seen."""
    counted, before = 0, sys.gettrace()

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, counted = True, counted + (event == "opcode")
        return count

    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted
