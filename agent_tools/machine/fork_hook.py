"""Forked children close inherited descriptors: a child must not keep its dead parent's sandboxes alive."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object with descriptors that end a sandbox when the last copy is closed."""

    def abandon(self) -> None:
        """Close the descriptors in a forked child, without a message to the sandbox."""
        ...


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
_is_hooked = False


def abandon_after_fork(inherited: Inherited) -> None:
    """Call `inherited.abandon` in every child that this process forks while `inherited` exists."""
    global _is_hooked
    _inherited.add(inherited)
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for inherited in list(_inherited):
        inherited.abandon()
