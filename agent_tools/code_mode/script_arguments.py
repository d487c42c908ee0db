"""The arguments of a script's function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_tools.runtime.host_calls.function import Keywords


@dataclass(frozen=True)
class Arg:
    """An argument of `run`; a named one is a keyword argument."""

    value: Any
    name: str | None = None


def split_args(given: tuple[Any, ...], keywords: Keywords) -> tuple[list[Any], Keywords]:
    """Return positional and keyword arguments, with each `Arg` in its place."""
    positional, named = [], dict(keywords)
    for each in given:
        if isinstance(each, Arg) and each.name:
            named[each.name] = each.value
        else:
            positional.append(each.value if isinstance(each, Arg) else each)
    return positional, named
