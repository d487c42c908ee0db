"""The errors that models' servers send, in the shapes that servers use: as the body of an answer, or in its stream."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin, urlsplit

from agent_tools.text import neutralise

_SHORT_NAME = re.compile(r"[\w.-]{1,64}")
_MAX_ERRORS = 10  # of one answer that are reported
_MAX_ADDRESS = 200  # characters of an address that is shown
_MAX_DEPTH = 4  # of the words in the body of an error
_OF_A_REPLY = ("choices", "usage", "id", "type")  # a chunk or an event has one of these; some chunks have a `message`
_OF_AN_ERROR = ("message", "detail", "msg", "status_msg")
_EXCEPTION = re.compile(r"[a-z]Exception$")
_WORDS = (
    *("error_description", "error_message", "error_msg", "error", "errors", *_OF_AN_ERROR, "details", "reason"),
    *("exception", "fault", "faultstring", "header", "title"),
)
"""Names of fields, in lower case, that hold a server's words, or something that holds them; the best first."""

CONTEXT_TOO_LONG = "context_length_exceeded"
"""OpenAI's name of the failure that the conversation does not fit into the model's context."""

_NAME_OF_TOO_LONG = re.compile(r"(?=.*(?:context|prompt)).*(?:exceed|too_long).*", re.IGNORECASE)
_CONTEXT = r"context (?:length|window|size|limit)|(?:prompt|model|input) length|input token count|model token limit"
_EXCESS = r"exceed|maximum|too (?:long|large)|(?:long|great|larg)er than|is only"
_RATE = r"rate limit|quota|per (?:second|minute|hour|day)"
_SAYS_TOO_LONG = re.compile(
    rf"(?!.*(?:{_RATE}))(?:(?=.*(?:prompt|input) is too long)|(?=.*(?:{_CONTEXT}))(?=.*(?:{_EXCESS})))",
    re.IGNORECASE | re.DOTALL,
)
MAX_WORDS = 1_000  # characters of a server's words that are searched


def failure_name(words: str, *names: object) -> str | None:
    """Return the short name of a failure; servers have several names and sentences for a context that is too long."""
    is_too_long = any(_NAME_OF_TOO_LONG.fullmatch(name[:100]) for name in names if isinstance(name, str))
    return CONTEXT_TOO_LONG if is_too_long or _SAYS_TOO_LONG.match(words[:MAX_WORDS]) else short_name(*names)


def short_name(*names: object) -> str | None:
    """Return the first of a failure's names that is short; a number is the status again."""
    return next(
        (name for name in names if isinstance(name, str) and _SHORT_NAME.fullmatch(name) and not name.isdigit()), None
    )


def error_of(body: object) -> object:
    """Return the error that an answer, or an event in its stream, consists of; None if it is no error.

    Besides `{"error": ...}`, also in a choice, there are vLLM's `{"object": "error", "message": ...}`, FastAPI's
    `{"detail": ...}`, and the `base_resp` of a failure beside a reply without choices.
    """
    body = body[0] if isinstance(body, list) and len(body) == 1 else body
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    choices = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    for holder in (body, *choices, *(each.get("delta") for each in choices)):
        if isinstance(holder, dict) and (inner := holder.get("error") or holder.get("errors")):
            inner = holder if inner is True else inner
            return inner["error"] if isinstance(inner, dict) and inner.get("error") not in (None, True) else inner
    if isinstance(base := body.get("base_resp"), dict) and base.get("status_code"):
        return base
    if not choices and (named := next((each for name, each in body.items() if _EXCEPTION.search(name) and each), None)):
        return named
    is_error = body.get("object") == "error" or (
        not any(name in body for name in _OF_A_REPLY) and any(body.get(name) for name in _OF_AN_ERROR)
    )
    return body if is_error else None


def redirect_target(response: Any) -> str:
    """Return the address that an HTTP client's response redirects to, without user and query; '' if it does not."""
    if not response.has_redirect_location:
        return ""
    try:
        target = urlsplit(urljoin(str(response.url), response.headers["location"]))
    except ValueError:
        return "an address that is malformed"
    address = f"{target.scheme}://{target.netloc.rpartition('@')[2]}{target.path}"
    return neutralise(address[:_MAX_ADDRESS])


def words_of(body: object, depth: int = _MAX_DEPTH) -> str:
    """Return a server's own words from the body of its error; '' if it has none."""
    if isinstance(body, list):
        return "; ".join(filter(None, (words_of(each, depth - 1) for each in body[:_MAX_ERRORS] if depth)))
    if isinstance(body, dict):
        found = {str(name).lower(): each for name, each in body.items() if each} if depth else {}
        words = next(filter(None, (words_of(found[name], depth - 1) for name in _WORDS if name in found)), "")
        if words and isinstance(body.get("loc"), list):  # the field that FastAPI's message is about
            words = (
                f"{words}: {'.'.join(str(part) for part in body['loc'][:_MAX_ERRORS] if isinstance(part, (str, int)))}"
            )
        return f"{words}: {raw}" if words and (raw := _raw(body.get("metadata"))) else words
    return body if isinstance(body, str) else ""


def _raw(metadata: object) -> str:
    """Return the words of the server behind a router, such as OpenRouter, whose own say only that it failed."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return raw if isinstance(raw, str) else ""
