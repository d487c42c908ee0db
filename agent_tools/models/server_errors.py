"""The errors that models' servers send, in the shapes that servers use: as the body of an answer, or in its stream."""

from __future__ import annotations

import re

_SHORT_NAME = re.compile(r"[\w.-]{1,64}")
_MAX_ERRORS = 10  # of one answer that are told
_MAX_DEPTH = 4  # of the words in the body of an error
_OF_A_REPLY = ("choices", "usage", "id", "type")  # a chunk or an event has one of these; some chunks have a `message`
_OF_AN_ERROR = ("message", "detail", "msg")


def short_name(*names: object) -> str | None:
    """Return the first of a failure's names that is short; a number is the status again."""
    return next(
        (name for name in names if isinstance(name, str) and _SHORT_NAME.fullmatch(name) and not name.isdigit()), None
    )


def error_of(body: object) -> object:
    """Return the error that an answer, or an event in its stream, consists of; None if it is no error.

    Besides `{"error": ...}` there are vLLM's `{"object": "error", "message": ...}` and FastAPI's `{"detail": ...}`.
    """
    if not isinstance(body, dict):
        return None
    if body.get("error"):
        return body["error"]
    is_error = body.get("object") == "error" or (
        not any(name in body for name in _OF_A_REPLY) and any(body.get(name) for name in _OF_AN_ERROR)
    )
    return body if is_error else None


def words_of(body: object, depth: int = _MAX_DEPTH) -> str:
    """Return a server's own words from the body of its error; '' if it has none."""
    if isinstance(body, list):
        return "; ".join(filter(None, (words_of(each, depth - 1) for each in body[:_MAX_ERRORS] if depth)))
    if isinstance(body, dict):
        inner = next((body[name] for name in ("error", *_OF_AN_ERROR) if body.get(name)), "")
        return words_of(inner, depth - 1) if depth else ""
    return body if isinstance(body, str) else ""
