"""The arguments of a call in its record: the beginning of each, on one line."""

from __future__ import annotations

import reprlib
from functools import cache
from itertools import islice
from typing import Any

from agent_tools.text import neutralise

MOST_ARGUMENTS = 6  # arguments shown by position, and the same number by name
MAX_NAME_CHARS = 40  # of an argument


class _Repr(reprlib.Repr):
    """Shows the beginning of values; dicts are not sorted, which would need all keys."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxstring = self.maxother = most

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)


_repr_of = cache(_Repr)  # by limit: making one takes longer than most previews


def preview(args: list[Any], kwargs: dict[str, Any], most: int) -> str:
    """Return the arguments in at most `most` characters."""
    shown = _repr_of(most)
    parts = [shown.repr(each) for each in args[:MOST_ARGUMENTS]]
    parts += [f"{name[:MAX_NAME_CHARS]}={shown.repr(each)}" for name, each in islice(kwargs.items(), MOST_ARGUMENTS)]
    text = neutralise(", ".join(parts))
    return text if len(text) <= most else f"{text[: most - 3]}..."
