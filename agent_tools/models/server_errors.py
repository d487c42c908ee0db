"""The errors that models' servers send, in the shapes that servers use: as the body of an answer, or in its stream."""

from __future__ import annotations

import re

_SHORT_NAME = re.compile(r"[\w.-]{1,64}")
_MAX_ERRORS = 10  # of one answer that are told
_MAX_DEPTH = 4  # of the words in the body of an error


def short_name(*names: object) -> str | None:
    """Return the first of a failure's names that is short; a number is the status again."""
    return next(
        (name for name in names if isinstance(name, str) and _SHORT_NAME.fullmatch(name) and not name.isdigit()), None
    )


def words_of(body: object, depth: int = _MAX_DEPTH) -> str:
    """Return a server's own words from the body of its error; '' if it has none."""
    if isinstance(body, list):
        return "; ".join(filter(None, (words_of(each, depth - 1) for each in body[:_MAX_ERRORS] if depth)))
    if isinstance(body, dict):
        inner = next((body[name] for name in ("error", "message", "detail", "msg") if body.get(name)), "")
        return words_of(inner, depth - 1) if depth else ""
    return body if isinstance(body, str) else ""
