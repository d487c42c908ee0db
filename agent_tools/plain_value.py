"""Plain data from the text that a kernel shows of it. The text is a guest's: it is bounded, parsed, and never run."""

from __future__ import annotations

import ast
import warnings
from typing import Any

MAX_CHARS = 64 * 1024
MAX_PARTS = 10_000  # commas and brackets: each may become an object many times its size


def plain_value(text: str) -> Any:
    """Return the value that Python would read from a text of literals; None for any other text."""
    if len(text) > MAX_CHARS or sum(map(text.count, ",([{")) > MAX_PARTS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in what was never meant as source
            found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if _is_cut(found) else found


def _is_cut(value: Any) -> bool:
    """Return whether something was left out of it, for which `...` stands."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each is Ellipsis:
            return True
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set)):
            waiting += each
    return False
