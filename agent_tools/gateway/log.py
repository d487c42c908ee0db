"""The gateway's log on standard error: one line for each event, as text or as JSON, with the id of its request.

No line holds a message, code, output, key or query. A request's line comes at the end of its answer.
"""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from agent_tools.containers.config import LogLevel
from agent_tools.gateway.config import LogFormat
from agent_tools.text import one_line

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that this thread or task works for: its `x-request-id`."""

_QUIET = frozenset(
    {"/health", "/ready", "/metrics", "/page/state", "/page/operator"}
)  # requested every few seconds by programs
_POLLED = ("/execute", "/ports")  # likewise, by a page that shows a terminal
_access = logging.getLogger("agent_tools.gateway.access")


def log_request(method: str, path: str, client: str, status: int, seconds: float, key: str) -> None:
    """Log a request that was answered. `key` is the name of its key, '' without one."""
    is_poll = path in _QUIET or (method == "GET" and path.endswith(_POLLED))
    level = logging.DEBUG if is_poll else logging.INFO
    if _access.isEnabledFor(level):
        fields = {"client": client, "method": method, "path": quote(path), "status": status}
        fields |= {"seconds": round(seconds, 3), "key": key}
        line = f'{client} "{method} {quote(path)}" {status} {seconds:.3f} s {key}'.rstrip()
        _access.log(level, "%s", line, extra={"fields": fields})


def log_config(form: LogFormat, level: LogLevel) -> dict[str, Any]:
    """Return a configuration for `logging.config.dictConfig`; uvicorn applies it at its start."""
    name = level.upper()
    formatter = {"()": JsonFormatter if form == "json" else TextFormatter}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": "WARNING" if name in ("DEBUG", "INFO") else name},
        "loggers": {logger: {"level": name} for logger in ("agent_tools", "uvicorn")},
    }


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO agent_tools.x: what happened [req_...]`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line; a traceback follows on lines of its own."""
        request = f" [{request_id.get()}]" if request_id.get() else ""
        line = f"{_moment(record)} {record.levelname} {record.name}: {one_line(record.getMessage())}{request}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """An object on a line: time, level, logger, message, request_id, and those of a request's end."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        found = {"time": _moment(record), "level": record.levelname.lower(), "logger": record.name}
        found |= {"message": record.getMessage(), "request_id": request_id.get()}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**found, **getattr(record, "fields", {})})


def _moment(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
