"""A record of host calls in a file, and functions that answer from it: for resuming after a crash, and for tests.

One JSON object in each line, written when a call is over:

    {"seq": 0, "name": "f", "args": sha256 of the arguments, "value": encoded, "attachments": [base64]}
    {"seq": 1, "name": "f", "args": ..., "error": {"type", "message", "is_argument"}}
    {"from": 2}                         what is recorded from this call on is void: the code went another way

Calls are numbered as they begin. What was cancelled is not recorded. Code whose calls depend on time or chance, or on
which of several concurrent calls is over first, cannot be replayed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_tools.code_mode.attachments import rich_value
from agent_tools.errors import InvalidParams, ReplayError
from agent_tools.guest.wire.budget import Unbounded
from agent_tools.guest.wire.values import decode, encode
from agent_tools.runtime.host_calls.aside import aside
from agent_tools.runtime.host_calls.function import ArgumentError, CallRequest, HostFunction
from agent_tools.runtime.host_calls.run import asked


def recorded(
    functions: Mapping[str, HostFunction], record: str | Path | None, replay: str | Path | None
) -> Mapping[str, HostFunction]:
    """The functions, with their calls recorded in one file, or answered from another.

    The same file as both resumes: it answers while the calls are those it holds, and goes on from there.

    Raises:
        InvalidParams: the file to replay cannot be read.
    """
    if record is None and replay is None:
        return functions
    journal = Journal(Path(record) if record else None, Path(replay) if replay else None)
    return {name: _Recorded(name, function, journal) for name, function in functions.items()}


class Journal:
    """The calls of one sandbox's life, in a file."""

    def __init__(self, record: Path | None, replay: Path | None) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._differs = ""
        self._record = record
        self._is_resumed = record is not None and replay is not None and _is_same(record, replay)
        self._entries = _read(replay, is_new_allowed=self._is_resumed) if replay else {}
        self._is_live = replay is None
        if record and not self._is_resumed:
            _write(record, "", os.O_TRUNC)

    def begin(self, name: str, key: str) -> tuple[int, dict[str, Any] | None]:
        """The number of a call that begins, and what is recorded of it, None if it is to be made.

        Raises:
            ReplayError: the record has another call here, or none.
        """
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
            entry = None if self._is_live else self._entries.get(number)
            if self._is_live or (entry and (entry["name"], entry["args"]) == (name, key) and not self._differs):
                return number, entry
            if self._is_resumed:
                self._go_live(number, is_void=entry is not None)
                return number, None
            found = f"a call of {entry['name']}" if entry else "no call"
            found += " with other arguments" if entry and entry["name"] == name else ""
            self._differs = self._differs or f"Call {number} is one of {name}, where the record has {found}."
            raise ReplayError(self._differs)

    def is_known(self, name: str, key: str) -> bool:
        """Whether a call that is about to begin will be answered from the record."""
        with self._lock:
            rest = (entry for number, entry in self._entries.items() if number >= self._begun)
            return not self._is_live and any((entry["name"], entry["args"]) == (name, key) for entry in rest)

    def note(self, number: int, name: str, key: str, outcome: dict[str, Any]) -> None:
        """Record a call that is over."""
        if self._record:
            with self._lock:
                _write(self._record, json.dumps({"seq": number, "name": name, "args": key, **outcome}) + "\n")

    def _go_live(self, number: int, *, is_void: bool) -> None:
        """Nothing is answered from the record any more; calls that were under way when it ended are made again."""
        if not is_void and any(each > number for each in self._entries):
            return
        self._is_live = True
        if is_void and self._record:
            _write(self._record, json.dumps({"from": number}) + "\n")


class _Recorded:
    """A host function whose calls go through a journal."""

    def __init__(self, name: str, function: HostFunction, journal: Journal) -> None:
        self._name, self._function, self._journal = name, function, journal
        self.policy = function.policy
        if function.policy.approve:
            self.policy = replace(function.policy, approve=self._approve)

    async def _approve(self, request: CallRequest) -> bool:
        """What was approved and done is not asked for again."""
        if self._journal.is_known(self._name, await aside(_key, request.args, request.kwargs)):
            return True
        assert self._function.policy.approve is not None
        return await asked(self._function.policy.approve, request)

    async def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer from the record, or call the function and record what came of it."""
        key = await aside(_key, args, kwargs)
        number, entry = self._journal.begin(self._name, key)
        if entry is not None:
            return _outcome(entry)
        try:
            value = await self._function.call(args, kwargs)
            data, attachments = encode(value, f"result of {self._name}")
        except Exception as exc:
            error = {"type": type(exc).__name__, "message": str(exc), "is_argument": isinstance(exc, ArgumentError)}
            self._journal.note(number, self._name, key, {"error": error})
            raise
        parts = [base64.b64encode(part).decode() for part in attachments]
        self._journal.note(number, self._name, key, {"value": data, "attachments": parts})
        return value


def _outcome(entry: dict[str, Any]) -> Any:
    if error := entry.get("error"):
        if error["is_argument"]:
            raise ArgumentError(error["message"])
        raise type(error["type"], (Exception,), {})(error["message"])
    attachments = [base64.b64decode(part) for part in entry["attachments"]]
    return decode(entry["value"], attachments, rich_value, Unbounded())


def _key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    data, attachments = encode([list(args), dict(kwargs)], "arguments")
    digest = hashlib.sha256(json.dumps(_ordered(data), sort_keys=True).encode())
    for part in attachments:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _ordered(data: Any) -> Any:
    """Sets in an order that is the same in every process."""
    if isinstance(data, list):
        return [_ordered(each) for each in data]
    if not isinstance(data, dict):
        return data
    inner = {name: _ordered(each) for name, each in data.items()}
    if inner.get("$") in ("set", "frozenset"):
        inner["v"] = sorted(inner["v"], key=json.dumps)
    return inner


def _read(path: Path, *, is_new_allowed: bool) -> dict[int, dict[str, Any]]:
    entries: dict[int, dict[str, Any]] = {}
    try:
        for line in path.read_text().splitlines():
            if not line.endswith("}"):  # the process died while it wrote
                continue
            entry = json.loads(line)
            if "from" in entry:
                entries = {number: each for number, each in entries.items() if number < entry["from"]}
            else:
                entries[entry["seq"]] = entry
    except FileNotFoundError as exc:
        if not is_new_allowed:
            raise InvalidParams(f"There is no record {str(path)!r} to replay.") from exc
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidParams(f"{str(path)!r} is not a record of host calls ({exc}).") from exc
    return entries


def _write(path: Path, text: str, flags: int = 0) -> None:
    """Append; the file is for its owner alone, since it holds all that the functions answered."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
