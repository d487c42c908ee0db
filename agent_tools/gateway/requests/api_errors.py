"""Errors for clients, in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agent_tools.bodies.error_body import TYPES, error_body, kind_of

_ANTHROPICS_TYPES = {**TYPES, 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}
SecurityEvent = Literal[
    "unknown_key",
    "foreign_origin",
    "malformed",
    "late",
    "too_large",
    "too_many_connections",
    "work_dir_quota",
    "protocol_violation",
]
"""Security events: refused requests, and code that exceeded its limits."""


class ApiError(Exception):
    """An answer other than 2xx. `param` is the path of the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        return kind_of(self.status)

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        return error_body(self.status, self.message, self.code, self.param)

    @property
    def anthropics_body(self) -> dict[str, Any]:
        """The body of the answer in the format of Anthropic's API."""
        kind = _ANTHROPICS_TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


class Refusal(ApiError):
    """A refused request that is also counted as a security event, `event`."""

    def __init__(
        self, event: SecurityEvent, status: int, message: str, code: str | None = None, *, param: str | None = None
    ) -> None:
        super().__init__(status, message, code=code, param=param)
        self.event = event


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(400, message, param=param, code=code)


def missing(param: str) -> ApiError:
    """Return the error for a missing field."""
    return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unknown_place(after: str) -> ApiError:
    """Return the error for an unknown `after` of a list: an empty page would look like the list's end."""
    said = (
        f"Nothing in this list has the id {after!r:.100}; it may have been deleted. Ask for the list without 'after'."
    )
    return invalid(said, "after", "invalid_value")


def not_found(what: str, id_: str) -> ApiError:
    """Return the error for an object that does not exist, or is another key's."""
    return ApiError(404, f"No {what} found with id '{id_[:80]}'.", code=f"{what.replace(' ', '_')}_not_found")


def full(message: str) -> ApiError:
    """Return the error for a key that has used its quota; the message says what to delete."""
    return ApiError(400, message, code="storage_limit_exceeded")


def too_large(message: str, code: str = "request_too_large", param: str | None = None) -> Refusal:
    """Return the error for a request of too many bytes or parts."""
    return Refusal("too_large", 413, message, code, param=param)


def late(what: str) -> Refusal:
    """Return the error for a request that arrives too slowly."""
    return Refusal("late", 408, f"The request's {what} did not come in time.", "request_timeout")


def busy(status: int, message: str, seconds: float) -> ApiError:
    """Return the error for an overloaded gateway; the client should retry after `seconds`."""
    headers = {"Retry-After": str(max(1, round(seconds)))}
    return ApiError(status, message, code="rate_limit_exceeded" if status == 429 else "overloaded", headers=headers)


def revoked() -> ApiError:
    """Return the error for running requests of a key that is revoked."""
    return ApiError(401, "The API key was revoked.", code="invalid_api_key")


def upstream_unauthorized() -> ApiError:
    """Return the error for an upstream that refuses the gateway's key; its own message may repeat the key."""
    return ApiError(502, "The upstream refuses the gateway's own key.", code="upstream_unauthorized")


def code_execution_refused(kind: str) -> ApiError:
    """Return the error for the tool that runs code in Anthropic's API, which nothing here would run."""
    message = f"Tools of type {kind!r:.60} are not supported here: /v1/responses runs code, with code_interpreter."
    return invalid(message, "tools", "unsupported_value")


def stopped() -> ApiError:
    """Return the error for an answer that the gateway's stop cuts off."""
    return ApiError(503, "The gateway was stopped before the response's end.", code="gateway_stopped")


def no_summary() -> ApiError:
    """Return the error for a conversation that the model did not sum up."""
    return ApiError(502, "The model wrote no summary, or not all of it.", code="no_summary")
