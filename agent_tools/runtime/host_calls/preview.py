"""The arguments of a call as its record shows them: the beginning of each, on one line, whatever the guest sent."""

from __future__ import annotations

import reprlib
from functools import cache
from itertools import islice
from typing import Any

from agent_tools.text import neutralise

MOST_ARGUMENTS = 6  # that are shown: by their place, and as many by name
MAX_NAME_CHARS = 40  # of an argument


class _Repr(reprlib.Repr):
    """Shows the beginning of values; of a dict, too, where all keys would be sorted otherwise."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxstring = self.maxother = most

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)


_repr_of = cache(_Repr)  # of a limit: making one takes longer than most previews


def preview(args: list[Any], kwargs: dict[str, Any], most: int) -> str:
    """Return the arguments in at most so many characters."""
    shown = _repr_of(most)
    parts = [shown.repr(each) for each in args[:MOST_ARGUMENTS]]
    parts += [f"{name[:MAX_NAME_CHARS]}={shown.repr(each)}" for name, each in islice(kwargs.items(), MOST_ARGUMENTS)]
    text = neutralise(", ".join(parts))
    return text if len(text) <= most else f"{text[: most - 3]}..."
