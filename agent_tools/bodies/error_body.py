"""The body of an answer that is an error, in the format of OpenAI's API."""

from __future__ import annotations

from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def kind_of(status: int) -> str:
    """Return OpenAI's `type` for a status."""
    return TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Return the body. `param` is the path of the field that is wrong."""
    return {"error": {"message": message, "type": kind_of(status), "param": param, "code": code}}
