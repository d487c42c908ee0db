"""The audit log: who ran what, when, in which container, with which outcome. Off unless a file is named.

A line is one JSON object, ASCII, of at most MAX_LINE bytes; docs/audit.md lists its fields. A run writes two: `begun`
before its code is sent, so that a crash leaves the first, and `ended`. Messages, outputs, tracebacks, headers and keys
are never written, code only with `code=True`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from agent_tools.errors import AgentToolsError
from agent_tools.limits import KIB
from agent_tools.results.execution import CommandResult, Died, Error, Execution, TimedOut

VERSION = 1
MAX_LINE = 64 * KIB  # bytes; the code, if written, may add as many again
MAX_ITEMS = 50  # files, connections and host calls of a run that are listed
MAX_PATH = 1_024  # characters
CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,79}")
STDOUT = "-"
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AuditUnavailable(AgentToolsError):
    """The audit log is required and cannot be written, so nothing runs."""


class AuditLog:
    """An audit log file. Threads, processes and gateways of one machine may append to it at the same time.

    It is made with mode 0600, never through a symbolic link, and may be moved away at any time (logrotate).

    Args:
        path: the file, or '-' for stdout.
        code: also write the code of runs and the arguments of commands.
        required: nothing runs while the log cannot be written; if False, work goes on unaudited.
        fields: fields added to each line.
    """

    def __init__(self, path: str | Path, *, code: bool = False, required: bool = True, **fields: str) -> None:
        self.path = str(path)
        self._has_code, self._is_required, self._fields = code, required, fields

    def of(self, **fields: str) -> AuditLog:
        """Return the same log with fields added to each line, such as owner and container."""
        return AuditLog(self.path, code=self._has_code, required=self._is_required, **{**self._fields, **fields})

    def write(self, event: str, **fields: Any) -> None:
        """Append a line, without fields that are None or empty.

        Raises:
            AuditUnavailable: it could not be written, and the log is required.
        """
        line = _line({"v": VERSION, "at": _now(), "event": event, **self._fields, **fields})
        try:
            _append(self.path, line)
        except OSError as exc:
            if self._is_required:
                raise AuditUnavailable(
                    f"The audit log {self.path} cannot be written ({exc.strerror}), so nothing runs. Make room or "
                    "correct its permissions; audit_required=false runs without."
                ) from exc

    @contextlib.contextmanager
    def run(self, code: str) -> Iterator[AuditedRun]:
        """Write a line before the code of the block and one after it. Errors as for `write`, before the code."""
        yield from _ended(self.begun(code))

    @contextlib.contextmanager
    def command(self, words: str | Iterable[str]) -> Iterator[AuditedRun]:
        """The same for a command."""
        yield from _ended(self.command_begun(words))

    def begun(self, code: str) -> AuditedRun:
        """Write that code begins; the caller reports its end. Errors as for `write`."""
        return self._begun("", code)

    def command_begun(self, words: str | Iterable[str]) -> AuditedRun:
        """The same for a command."""
        return self._begun("command_", words if isinstance(words, str) else json.dumps(list(map(str, words))))

    def _begun(self, kind: str, text: str) -> AuditedRun:
        id_, data = f"r_{secrets.token_hex(8)}", text.encode("utf-8", "replace")
        code, digest = text if self._has_code else None, hashlib.sha256(data).hexdigest()
        self.write(f"{kind}begun", run=id_, code_sha256=digest, code_bytes=len(data), code=code)
        return AuditedRun(partial(self.write, f"{kind}ended", run=id_))


def _ended(run: AuditedRun) -> Iterator[AuditedRun]:
    outcome = "cancelled"
    try:
        yield run
        outcome = "ok"
    except Exception:
        outcome = "refused"
        raise
    finally:
        run.end(outcome)


class AuditedRun:
    """One run of code or a command that is being audited. `write` appends its last line."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._began = time.monotonic()
        self.about: Mapping[str, Any] = {}

    def end(self, outcome: str) -> None:
        """Write how the run ended: as reported before, or with this outcome. A failing log raises nothing here."""
        duration = round(time.monotonic() - self._began, 3)
        with contextlib.suppress(AuditUnavailable):
            self._write(**{"duration": duration, **(self.about or {"outcome": outcome})})

    def end_command(self, result: Callable[[], CommandResult]) -> None:
        """Write how a background command ended."""
        self.commanded(result())
        self.end("ok")

    def replied(self, reply: Mapping[str, Any]) -> None:
        """Take the outcome of code from Jupyter's `execute_reply`."""
        name = str(reply.get("ename", ""))
        is_error = reply.get("status") == "error"
        self.about = {"outcome": "error", "error": _class_name(name)} if is_error else {"outcome": "ok"}

    def executed(self, execution: Execution) -> None:
        """Take the outcome of code, and its files, connections and host calls, from its execution."""
        files, connections, calls = execution.changes, execution.connections, execution.host_calls
        self.about = {
            **ending(execution.error),
            "duration": round(execution.duration, 3),
            "queued": round(execution.queued, 3),
            "files": [{"path": change.name[:MAX_PATH], "size": change.size} for change in files[:MAX_ITEMS]],
            "files_left_out": len(files[MAX_ITEMS:]),
            "connections": [
                {
                    "host": each.host[:MAX_PATH],
                    "port": each.port,
                    "status": each.status,
                    "bytes_in": each.bytes_in,
                    "bytes_out": each.bytes_out,
                }
                for each in connections[:MAX_ITEMS]
            ],
            "connections_left_out": len(connections[MAX_ITEMS:]) + execution.connections_left_out,
            "host_calls": [{"name": call.name, "ok": call.status == "ok"} for call in calls[:MAX_ITEMS]],
            "host_calls_left_out": len(calls[MAX_ITEMS:]),
        }

    def commanded(self, result: CommandResult) -> None:
        """Take the outcome of a command from its result."""
        outcome = "timed_out" if result.timed_out else "ok" if result.ok else "error"
        self.about = {"outcome": outcome, "exit_code": result.exit_code, "duration": round(result.duration, 3)}


def ending(error: Error | TimedOut | Died | None) -> dict[str, Any]:
    """Return the fields `outcome` (ok, error, timed_out or died) and, for a failure, `error` or `cause`."""
    match error:
        case None:
            return {"outcome": "ok"}
        case Error(name):
            return {"outcome": "error", "error": _class_name(name)}
        case TimedOut():
            return {"outcome": "timed_out"}
        case died:
            return {"outcome": "died", "cause": died.cause}


def _class_name(name: str) -> str:
    return name if CLASS.fullmatch(name) else "_OTHER"


def _line(fields: Mapping[str, Any]) -> bytes:
    code = fields.get("code")
    kept = {name: value for name, value in fields.items() if name != "code" and not _is_empty(name, value)}
    line = _json(kept)
    if len(line) > MAX_LINE:
        line = _json({name: value for name, value in kept.items() if not isinstance(value, list)} | {"cut": True})
    if code is None:
        return line + b"\n"
    text = _json({"code": code})
    if len(text) > MAX_LINE:
        text = _json({"code": code[: MAX_LINE // 12], "code_cut": True})  # a character is up to 12 bytes
    return line[:-1] + b"," + text[1:] + b"\n"


def _is_empty(name: str, value: object) -> bool:
    return value is None or value in ("", []) or (value == 0 and name.endswith("_left_out"))


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _append(path: str, line: bytes) -> None:
    file = 1 if path == STDOUT else os.open(path, FLAGS, 0o600)  # opened for each line, since the file may be rotated
    try:
        if path != STDOUT and not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(None, "it is not a regular file")
        if os.write(file, line) != len(line):
            os.write(file, b"\n")  # so that the next line begins on a line of its own
            raise OSError(None, "the disk is full")
    finally:
        if path != STDOUT:
            os.close(file)
