"""The names by which a caller may call."""

from __future__ import annotations

from agent_tools.errors import InvalidParams

VERBS = frozenset(("interrupt", "restart", "reset", "define", "undo", "checkpoint", "rollback", "add_functions"))
"""Methods of a session that a caller may call by name."""
FILE_VERBS = frozenset(("read", "write", "scan", "stat", "move", "remove", "make_dir"))
"""Methods of its files, likewise."""
GOING_ON = frozenset(("code", "command", "save", "load"))
"""What goes on for a while, and gives items meanwhile."""


def known(verb: str, verbs: frozenset[str]) -> str:
    """Return the verb. Raises InvalidParams: it is none of these."""
    if verb not in verbs:
        raise InvalidParams(f"{verb!r:.40} is nothing that a session does for a caller on another machine.")
    return verb
