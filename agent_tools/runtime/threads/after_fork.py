"""Forked children let go of what they inherit: a child must not keep its dead parent's sandboxes alive."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something that holds descriptors which end a sandbox when the last of them is closed."""

    def abandon(self) -> None:
        """Close them in a forked child, without a word to the sandbox."""
        ...


_held: weakref.WeakSet[Inherited] = weakref.WeakSet()
_is_hooked = False


def abandon_after_fork(held: Inherited) -> None:
    """Have `held.abandon` called in every child that this process forks while it lives."""
    global _is_hooked
    _held.add(held)
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for held in list(_held):
        held.abandon()
