"""The errors that models' servers send, in the shapes that servers use: as the body of an answer, or in its stream."""

from __future__ import annotations

import re

_SHORT_NAME = re.compile(r"[\w.-]{1,64}")
_MAX_ERRORS = 10  # of one answer that are told
_MAX_DEPTH = 4  # of the words in the body of an error
_OF_A_REPLY = ("choices", "usage", "id", "type")  # a chunk or an event has one of these; some chunks have a `message`
_OF_AN_ERROR = ("message", "detail", "msg")

CONTEXT_TOO_LONG = "context_length_exceeded"
"""OpenAI's name of the failure that the conversation does not fit into the model's context."""

_NAMES_OF_TOO_LONG = (
    CONTEXT_TOO_LONG,
    "exceed_context_size_error",
    "prompt_too_long",
    "model_max_prompt_tokens_exceeded",
)
_CONTEXT = r"context (?:length|window|size|limit)|(?:prompt|model|input) length|input token count|model token limit"
_EXCESS = r"exceed|maximum|too (?:long|large)|(?:long|great|larg)er than|is only"
_RATE = r"rate limit|quota|per (?:second|minute|hour|day)"
_SAYS_TOO_LONG = re.compile(
    rf"(?!.*(?:{_RATE}))(?:(?=.*(?:prompt|input) is too long)|(?=.*(?:{_CONTEXT}))(?=.*(?:{_EXCESS})))",
    re.IGNORECASE | re.DOTALL,
)
_MAX_WORDS = 1_000  # characters of a server's words that are searched


def failure_name(words: str, *names: object) -> str | None:
    """Return the short name of a failure; servers have several names and sentences for a context that is too long."""
    is_too_long = any(name in _NAMES_OF_TOO_LONG for name in names if isinstance(name, str))
    return CONTEXT_TOO_LONG if is_too_long or _SAYS_TOO_LONG.match(words[:_MAX_WORDS]) else short_name(*names)


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
