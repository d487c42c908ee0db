"""The sandbox that an adapter is given: one that is made, the options of one, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from agent_tools import AsyncSandbox


def sandbox_of(given: object) -> AsyncSandbox:
    """Return the sandbox to use; options make a new one.

    Raises:
        TypeError: it is neither a sandbox of this kind nor options.
        InvalidParams: an option is unknown or unusable.
    """
    if given is None or isinstance(given, Mapping):
        return AsyncSandbox(dict(given or {}))
    if not isinstance(given, AsyncSandbox):
        raise TypeError(f"{given!r:.80} is no AsyncSandbox: give one, or a dict of the options of one.")
    return given
