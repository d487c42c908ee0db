"""Converts failures into errors for clients, in one place for every route and job."""

from __future__ import annotations

import errno
import logging
import re

from agent_tools.bodies.json_body import BodyRefused
from agent_tools.containers import failures as containers
from agent_tools.errors import AgentToolsError, EngineError, ModelError, ToolServiceError
from agent_tools.gateway.requests.api_errors import ApiError, too_large, upstream_unauthorized

MAX_DETAIL = 1_000  # characters of the upstream's own message that are passed on
_CONTAINERS: dict[type[containers.ContainersError], tuple[int, str | None, str | None]] = {  # status, code, param
    containers.ContainerNotFound: (404, "container_not_found", None),
    containers.ContainerFileNotFound: (404, "container_file_not_found", None),
    containers.UploadNotFound: (404, "file_not_found", None),
    containers.ContainerExpired: (400, "container_expired", None),
    containers.ContainerNotDeleted: (503, "container_not_deleted", None),
    containers.TooManyContainers: (429, "too_many", None),
    containers.KeyRevoked: (401, "invalid_api_key", None),
    containers.RowsAway: (503, "database_unavailable", None),
    containers.ContainerElsewhere: (421, "container_elsewhere", None),
    containers.NoSandbox: (503, "overloaded", None),
    containers.MemoryRefused: (400, None, "memory_limit"),
    containers.NetworkRefused: (400, "unsupported_value", "network_policy"),
    containers.StorageFull: (400, "storage_limit_exceeded", None),
    containers.DiskFull: (507, "insufficient_storage", None),
    containers.FileTooLarge: (413, "file_too_large", "file"),
    containers.ContainerExists: (409, "container_exists", "name"),
    containers.FileNotWritten: (400, None, "file"),
}
_PASSING = (containers.TooManyContainers, containers.NoSandbox)
RETRY_AFTER = "5"  # seconds
_MAYBE_A_KEY = re.compile(r"\S*\*\S*|[\w-]{24,}")
_log = logging.getLogger(__name__)


def client_error(exc: Exception, *, is_clients_key: bool = False) -> ApiError:
    """Return the error for a failure. An unknown failure gets a general message; the log has its place.

    `is_clients_key` is true if the upstream was asked with the client's own key.
    """
    match exc:
        case ApiError():
            return exc
        case BodyRefused(status_code=413):
            return too_large(exc.detail, exc.code or "request_too_large", exc.param)
        case BodyRefused():
            return ApiError(exc.status_code, exc.detail, code=exc.code, param=exc.param)
        case containers.ContainersError():
            status, code, param = _CONTAINERS[type(exc)]
            headers = {"Retry-After": RETRY_AFTER} if isinstance(exc, _PASSING) else None
            return ApiError(status, exc.message, code=code, param=param, headers=headers)
        case ModelError():
            return _model_error(exc, is_clients_key)
        case AgentToolsError():
            _log.error("a request failed: %s", type(exc).__name__)
            return engine_error(exc) or ApiError(500, "The code interpreter failed.", code="code_interpreter_error")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return ApiError(507, "The gateway's disk is full; try again later.", code="insufficient_storage")
        case _:
            _log.error("a request failed: %s in %s", type(exc).__name__, _place(exc))
            return ApiError(500, "The gateway failed.", code="internal_error")


def engine_error(failure: Exception | None) -> ApiError | None:
    """Return the error of a failure that ends the whole answer; None if the model can still react to it."""
    if isinstance(failure, containers.RowsAway):
        return client_error(failure)
    cause = failure.exception if isinstance(failure, ToolServiceError) else failure
    if isinstance(cause, EngineError):
        message = "The code interpreter is not available: its engine does not work. Try again later."
        return ApiError(503, message, code="code_interpreter_unavailable")
    return None


def _model_error(exc: ModelError, is_clients_key: bool) -> ApiError:
    """Return the upstream's failure: a client's own errors unchanged, all others as a bad gateway."""
    detail = exc.detail[:MAX_DETAIL] or str(exc)
    status = exc.status or 502
    headers = {"Retry-After": exc.retry_after} if exc.retry_after else None
    if status in (401, 403) and not is_clients_key:
        words = _MAYBE_A_KEY.sub("***", exc.detail[:MAX_DETAIL]).strip()
        error = upstream_unauthorized()
        return ApiError(error.status, f"{error.message} It says: {words}", code=error.code) if words else error
    if not 400 <= status < 600:
        return ApiError(502, "The upstream's answer has an invalid status.", code="upstream_error")
    if status < 500:
        return ApiError(status, detail, code=exc.code, headers=headers)
    return ApiError(status, detail, code=exc.code or "upstream_error", headers=headers)


def _place(exc: BaseException) -> str:
    """Return the line an exception comes from, without values, which could be private."""
    traceback = exc.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else "?"
