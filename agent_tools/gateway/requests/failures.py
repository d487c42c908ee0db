"""What a client is told when its request cannot be served, in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
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
"""What an operator may want to be told of: requests that were turned away, and code that broke its bounds."""


class ApiError(Exception):
    """An answer other than 2xx. `param` is the path of the request's field that is to blame."""

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
        return _TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")

    @property
    def body(self) -> dict[str, Any]:
        """The answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class Refusal(ApiError):
    """A request that is turned away for what it is; `event` is what it is counted as."""

    def __init__(
        self, event: SecurityEvent, status: int, message: str, code: str | None = None, *, param: str | None = None
    ) -> None:
        super().__init__(status, message, code=code, param=param)
        self.event = event


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request cannot be used."""
    return ApiError(400, message, param=param, code=code)


def missing(param: str) -> ApiError:
    """A field is needed that is not there."""
    return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def not_found(what: str, id_: str) -> ApiError:
    """There is no such object, or it is another key's."""
    return ApiError(404, f"No {what} found with id '{id_[:80]}'.", code=f"{what.replace(' ', '_')}_not_found")


def full(message: str) -> ApiError:
    """What a key keeps is its whole share; the message says what to delete."""
    return ApiError(400, message, code="storage_limit_exceeded")


def too_large(message: str, code: str = "request_too_large", param: str | None = None) -> Refusal:
    """The request has more bytes or parts than it may."""
    return Refusal("too_large", 413, message, code, param=param)


def late(what: str) -> Refusal:
    """The request does not come, or comes too slowly."""
    return Refusal("late", 408, f"The request's {what} did not come in time.", "request_timeout")


def busy(status: int, message: str, seconds: float) -> ApiError:
    """There is no room now; ask again in so many seconds."""
    headers = {"Retry-After": str(max(1, round(seconds)))}
    return ApiError(status, message, code="rate_limit_exceeded" if status == 429 else "overloaded", headers=headers)


def stopped() -> ApiError:
    """The gateway ends before the answer does."""
    return ApiError(503, "The gateway was stopped before the response's end.", code="gateway_stopped")
