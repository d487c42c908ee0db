"""Packages that an extra of ours brings, and what to do where one is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import what an extra of ours brings.

    Raises:
        ModuleNotFoundError: a package is not there; the message says how to get it.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        how = f"pip install 'agent-tools-sandbox[{name}]'"
        raise ModuleNotFoundError(f"{exc.msg}. It comes with an extra: {how}", name=exc.name) from exc
