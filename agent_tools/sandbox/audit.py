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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent_tools.errors import AgentToolsError
from agent_tools.limits import KIB
from agent_tools.results.commands import CommandResult
from agent_tools.results.connections import NetworkConnection
from agent_tools.results.execution import Died, Error, Execution, TimedOut
from agent_tools.text import utc_text

VERSION = 1
MAX_LINE = 64 * KIB  # bytes
MAX_ITEMS = 50  # files, connections and host calls of a run that are listed
MAX_PATH = 1_024  # characters
CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,79}")
STDOUT = "-"
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class RunEnd:
    """The end of a run of code or a command: its duration and outcome as in the audit log, and its connections' bytes.

    `reason` is the name of the error, the limit that ended the kernel, or why the run was refused; '' if there is none.
    """

    milliseconds: int
    bytes_in: int = 0
    bytes_out: int = 0
    outcome: str = "ok"
    reason: str = ""


class AuditUnavailable(AgentToolsError):
    """The audit log is required and cannot be written, so nothing runs."""


@dataclass(frozen=True)
class AuditLog:
    """An audit log file. Threads, processes and gateways of one machine may append to it at the same time.

    It is made with mode 0600, never through a symbolic link, and may be moved away at any time (logrotate).

    Attributes:
        path: the file, or '-' for stdout; '' for no log.
        code: also write the code of runs and the arguments of commands.
        required: nothing runs while the log cannot be written; if False, work goes on unaudited.
        fields: fields added to each line.
        ended: called with the end of each run, also if there is no log.
    """

    path: str | Path = ""
    code: bool = False
    required: bool = True
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    ended: Callable[[RunEnd], None] | None = field(default=None, compare=False)

    def of(self, **fields: str) -> AuditLog:
        """Return the same log with fields added to each line, such as owner and container."""
        return replace(self, fields={**self.fields, **fields})

    def write(self, event: str, **fields: Any) -> None:
        """Append a line, without fields that are None or empty.

        Raises:
            AuditUnavailable: it could not be written, and the log is required.
        """
        if not self.path:
            return
        line = _line({"v": VERSION, "at": utc_text(time.time()), "event": event, **self.fields, **fields})
        try:
            _append(str(self.path), line)
        except OSError as exc:
            if self.required:
                raise AuditUnavailable(
                    f"The audit log {self.path} cannot be written ({exc.strerror}), so nothing runs. Make room or "
                    "correct its permissions; audit_required=false runs without."
                ) from exc

    def run(self, code: str) -> AuditedRun:
        """Write a line before code runs. A `with` block of the run, or its `end`, writes the one after it.

        Errors as for `write`.
        """
        return self._begun("", code)

    def command(self, words: str | Sequence[str]) -> AuditedRun:
        """The same for a command. Values that are not text are written as JSON; running them fails."""
        return self._begun("command_", words)

    def _begun(self, kind: str, words: str | Sequence[str]) -> AuditedRun:
        if not self.path:
            return AuditedRun(None, self.ended)
        text = words if isinstance(words, str) else json.dumps(words, default=str, skipkeys=True)
        id_, data = f"r_{secrets.token_hex(8)}", text.encode("utf-8", "replace")
        code, digest = text if self.code else None, hashlib.sha256(data).hexdigest()
        self.write(f"{kind}begun", run=id_, code_sha256=digest, code_bytes=len(data), code=code)
        return AuditedRun(partial(self.write, f"{kind}ended", run=id_), self.ended)


class AuditedRun:
    """One run of code or a command. `write` appends its last line; without it, the run is not audited."""

    def __init__(self, write: Callable[..., None] | None, ended: Callable[[RunEnd], None] | None = None) -> None:
        self._write = write
        self._ended = ended
        self._refusal = ""
        self._began = time.monotonic()
        self._about: dict[str, Any] = {}

    def __enter__(self) -> AuditedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: object) -> None:
        ours = exc if isinstance(exc, AgentToolsError) else None
        self._refusal = str(ours) if ours else kind.__name__ if kind else ""
        is_refused = isinstance(exc, Exception) and not (ours and ours.has_begun)
        self.end("ok" if kind is None else "refused" if is_refused else "cancelled")

    def end(self, outcome: str) -> None:
        """Write once how the run ended: as reported before, or with this outcome. A failing log raises nothing here."""
        write, self._write, ended, self._ended = self._write, None, self._ended, None
        about = {"duration": round(time.monotonic() - self._began, 3), "outcome": outcome, **self._about}
        if ended:
            moved = about.get("bytes_in", 0), about.get("bytes_out", 0)
            reason = about.get("error") or about.get("cause") or self._refusal
            ended(RunEnd(round(about["duration"] * 1_000), *moved, about["outcome"], reason))
        if write:
            with contextlib.suppress(AuditUnavailable):
                write(**about)

    def end_command(self, result: Callable[[], CommandResult]) -> None:
        """Write how a background command ended."""
        if self._write or self._ended:
            self.commanded(result())
            self.end("ok")

    def failed(self, error: Error | TimedOut | Died) -> None:
        """Report why code ended early."""
        self._about = ending(error)

    def executed(self, execution: Execution, *, was_cancelled: bool = False) -> None:
        """Report the outcome of code, and its files, connections and host calls."""
        made = execution.connections
        moved = {name: sum(getattr(each, name) for each in made) for name in ("bytes_in", "bytes_out")} if made else {}
        self._about = {**ending(execution.error), "duration": round(execution.duration, 3), **moved}
        if was_cancelled and execution.error:
            self._about["outcome"] = "cancelled"
        if self._write is None:
            return  # looking for changed files takes time
        connections, left_out = map(_connection, made), execution.connections_left_out
        self._about = {
            **self._about,
            "queued": round(execution.queued, 3),
            **_listed("files", ({"path": each.name[:MAX_PATH], "size": each.size} for each in execution.changes)),
            **_listed("connections", connections, left_out),
            **_listed("host_calls", ({"name": each.name, "ok": each.status == "ok"} for each in execution.host_calls)),
        }

    def commanded(self, result: CommandResult, *, was_cancelled: bool = False) -> None:
        """Report the outcome of a command."""
        failed = "cancelled" if was_cancelled else "error"
        outcome = "timed_out" if result.timed_out else "ok" if result.ok else failed
        self._about = {"outcome": outcome, "exit_code": result.exit_code, "duration": round(result.duration, 3)}


def ending(error: Error | TimedOut | Died | None) -> dict[str, Any]:
    """Return the fields `outcome` (ok, error, timed_out or died) and, for a failure, `error` or `cause`."""
    match error:
        case None:
            return {"outcome": "ok"}
        case Error(name):
            return {"outcome": "error", "error": name if CLASS.fullmatch(name) else "_OTHER"}
        case TimedOut():
            return {"outcome": "timed_out"}
        case died:
            return {"outcome": "died", "cause": died.cause}


def _connection(made: NetworkConnection) -> dict[str, Any]:
    numbers = {name: getattr(made, name) for name in ("port", "status", "bytes_in", "bytes_out")}
    return {"host": made.host[:MAX_PATH], **numbers}


def _listed(name: str, items: Iterable[Mapping[str, Any]], left_out: int = 0) -> dict[str, Any]:
    found = list(items)
    return {name: found[:MAX_ITEMS], f"{name}_left_out": len(found[MAX_ITEMS:]) + left_out}


def _line(fields: Mapping[str, Any]) -> bytes:
    kept = {name: value for name, value in fields.items() if not _is_empty(name, value)}
    line = _json(kept)
    if len(line) > MAX_LINE:
        kept = {name: value for name, value in kept.items() if not isinstance(value, list)} | {"cut": True}
        if code := kept.get("code"):
            kept |= {"code": code[: MAX_LINE // 16], "code_cut": True}  # a character is up to 12 bytes
        line = _json(kept)
    return line + b"\n"


def _is_empty(name: str, value: object) -> bool:
    return value is None or value in ("", []) or (value == 0 and name.endswith("_left_out"))


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _append(path: str, line: bytes) -> None:
    file = os.dup(1) if path == STDOUT else os.open(path, FLAGS, 0o600)  # for each line, since it may be rotated
    try:
        if path != STDOUT and not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(None, "it is not a regular file")
        if os.write(file, line) != len(line):
            os.write(file, b"\n")  # so that the next line begins on a line of its own
            raise OSError(None, "the disk is full")
    finally:
        os.close(file)
