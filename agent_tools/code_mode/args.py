"""Arguments of a script's function, as the caller writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arg:
    """An argument of `run`; with a name it is a keyword argument."""

    value: Any
    name: str | None = None


def split_args(given: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, with each `Arg` in its place."""
    positional, named = [], dict(keywords)
    for each in given:
        if isinstance(each, Arg) and each.name:
            named[each.name] = each.value
        else:
            positional.append(each.value if isinstance(each, Arg) else each)
    return positional, named
