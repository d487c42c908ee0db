"""Record host calls in a file and answer them from it: for resuming after a crash, and for tests.

Theory of operation. A `Journal` numbers the calls of a sandbox as they begin, and writes one line when a call is over:

    {"seq": 0, "name": "f", "args": sha256 of the arguments, "value": encoded, "attachments": [base64]}
    {"seq": 1, "name": "f", "args": ..., "error": {"type", "message", "is_argument"}}
    {"from": 2}                         calls from this one on are void: the code called something else

On replay, a call gets the recorded outcome if the entry of its number has the same name and arguments. At the first
call that differs, a plain replay fails, and so do all later calls. A replay that resumes, because it records into the
same file, voids the rest of the record there and makes the calls from then on.

A call without an entry need not be the end of the record: calls are recorded in the order in which they end, so at a
crash a later call may have ended before an earlier one. Such a call is made again, and replay goes on until there are
no later entries.

A cancelled call is not recorded. Code cannot be replayed if its calls depend on time or chance, or on the order in
which concurrent calls end.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

from agent_tools.code_mode.attachments import rich_value
from agent_tools.errors import InvalidParams, ReplayError
from agent_tools.guest.wire.budget import Unbounded
from agent_tools.guest.wire.values import decode, encode
from agent_tools.runtime.host_calls.function import ArgumentError, CallRequest, HostFunction, Keywords
from agent_tools.runtime.host_calls.reading import aside
from agent_tools.runtime.host_calls.run import is_approved


@dataclass(frozen=True)
class CallKey:
    """The identity of a call: the function's name, and the digest of its arguments."""

    name: str
    digest: str


@dataclass(frozen=True)
class RecordedResult:
    """The encoded result of a call."""

    data: Any
    attachments: list[bytes]

    def fields(self) -> Mapping[str, Any]:
        """Return its fields in the record's line."""
        return {"value": self.data, "attachments": [base64.b64encode(part).decode() for part in self.attachments]}

    def give(self) -> Any:
        """Return the value."""
        return decode(self.data, self.attachments, rich_value, Unbounded())


@dataclass(frozen=True)
class RecordedFailure:
    """The exception that a call raised; `is_argument` if its arguments did not match."""

    type: str
    message: str
    is_argument: bool

    def fields(self) -> Mapping[str, Any]:
        """Return its fields in the record's line."""
        return {"error": {"type": self.type, "message": self.message, "is_argument": self.is_argument}}

    def give(self) -> Any:
        """Raise the exception again, with a type of the same name."""
        if self.is_argument:
            raise ArgumentError(self.message)
        raise type(self.type, (Exception,), {})(self.message)


Outcome = Union[RecordedResult, RecordedFailure]
Entries = dict[int, tuple[CallKey, Outcome]]


def recorded(
    functions: Mapping[str, HostFunction], record: str | Path | None, replay: str | Path | None
) -> Mapping[str, HostFunction]:
    """Return the functions with their calls recorded in one file, or answered from another.

    If both are the same file, it is resumed: calls are answered from it while they match, then made and recorded.

    Raises:
        InvalidParams: the file to replay cannot be read.
    """
    if record is None and replay is None:
        return functions
    journal = CallRecording(Path(record) if record else None, Path(replay) if replay else None)
    return {name: _RecordedFunction(name, function, journal) for name, function in functions.items()}


class CallRecording:
    """The calls of one sandbox, in a file."""

    def __init__(self, record: Path | None, replay: Path | None) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._differs = ""  # the message about the first call that differs from the record
        self._record = record
        self._is_resumed = record is not None and replay is not None and _is_same(record, replay)
        self._entries = _read(replay, is_new_allowed=self._is_resumed) if replay else {}
        self._is_live = replay is None
        if record and not self._is_resumed:
            _write(record, "", os.O_TRUNC)

    def begin(self, key: CallKey) -> tuple[int, Outcome | None]:
        """Return the number of a call that begins, and its recorded outcome; None if the call must be made.

        Raises:
            ReplayError: the record has another call here, or no call.
        """
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
            if self._is_live:
                return number, None
            known, outcome = self._entries.get(number, (None, None))
            if known == key and not self._differs:
                return number, outcome
            if self._is_resumed:
                self._go_live(number, is_void=known is not None)
                return number, None
            self._differs = self._differs or _difference(number, key, known)
            raise ReplayError(self._differs)

    def is_known(self, key: CallKey) -> bool:
        """Return whether a call that is about to begin will be answered from the record."""
        with self._lock:
            rest = (known for number, (known, _) in self._entries.items() if number >= self._begun)
            return not self._is_live and key in rest

    def note(self, number: int, key: CallKey, outcome: Outcome) -> None:
        """Record a call that has ended."""
        if self._record:
            line = {"seq": number, "name": key.name, "args": key.digest, **outcome.fields()}
            with self._lock:
                _write(self._record, json.dumps(line) + "\n")

    def _go_live(self, number: int, *, is_void: bool) -> None:
        """Stop answering from the record, unless only this call's entry is missing and later ones exist."""
        if not is_void and any(each > number for each in self._entries):
            return
        self._is_live = True
        if is_void and self._record:
            _write(self._record, json.dumps({"from": number}) + "\n")


class _RecordedFunction:
    """A host function whose calls are recorded or replayed."""

    def __init__(self, name: str, function: HostFunction, journal: CallRecording) -> None:
        self._name, self._function, self._journal = name, function, journal
        self.policy = function.policy
        if function.policy.approve:
            self.policy = replace(function.policy, approve=self._approve)

    async def _approve(self, request: CallRequest) -> bool:
        """Approve a call without asking if the record answers it: it was approved and made before."""
        if self._journal.is_known(CallKey(self._name, await aside(_digest, request.args, request.kwargs))):
            return True
        assert self._function.policy.approve is not None
        return await is_approved(self._function.policy.approve, request)

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Answer from the record, or call the function and record the outcome."""
        key = CallKey(self._name, await aside(_digest, args, kwargs))
        number, outcome = self._journal.begin(key)
        if outcome is not None:
            return outcome.give()
        try:
            value = await self._function.call(args, kwargs)
            result = RecordedResult(*encode(value, f"result of {self._name}"))
        except Exception as exc:
            self._journal.note(
                number, key, RecordedFailure(type(exc).__name__, str(exc), isinstance(exc, ArgumentError))
            )
            raise
        self._journal.note(number, key, result)
        return value


def _difference(number: int, key: CallKey, known: CallKey | None) -> str:
    found = f"a call of {known.name}" if known else "no call"
    found += " with other arguments" if known and known.name == key.name else ""
    return f"Call {number} is one of {key.name}, where the record has {found}."


def _digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    data, attachments = encode([list(args), dict(kwargs)], "arguments")
    digest = hashlib.sha256(json.dumps(_ordered(data), sort_keys=True).encode())
    for part in attachments:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _ordered(data: Any) -> Any:
    """Return encoded data with its sets in an order that is the same in every process."""
    if isinstance(data, list):
        return [_ordered(each) for each in data]
    if not isinstance(data, dict):
        return data
    inner = {name: _ordered(each) for name, each in data.items()}
    if inner.get("$") in ("set", "frozenset"):
        inner["v"] = sorted(inner["v"], key=json.dumps)
    return inner


def _read(path: Path, *, is_new_allowed: bool) -> Entries:
    entries: Entries = {}
    try:
        for line in path.read_text().splitlines():
            if not line.endswith("}"):  # the process died while it wrote
                continue
            entry = json.loads(line)
            if "from" in entry:
                entries = {number: each for number, each in entries.items() if number < entry["from"]}
            else:
                entries[entry["seq"]] = CallKey(entry["name"], entry["args"]), _outcome(entry)
    except FileNotFoundError as exc:
        if not is_new_allowed:
            raise InvalidParams(f"The record {str(path)!r} to replay does not exist.") from exc
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidParams(f"{str(path)!r} is not a record of host calls ({exc}).") from exc
    return entries


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    if error := entry.get("error"):
        return RecordedFailure(error["type"], error["message"], error["is_argument"])
    return RecordedResult(entry["value"], [base64.b64decode(part) for part in entry["attachments"]])


def _write(path: Path, text: str, flags: int = 0) -> None:
    """Append to the file, which only its owner may read: it holds all results of the functions."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
