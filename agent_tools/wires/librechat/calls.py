"""Scripts whose tool calls LibreChat answers: their process waits between requests for the answers."""

from __future__ import annotations

import asyncio
import json
import keyword
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_tools.limits import MIB
from agent_tools.results.execution import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.http import aside
from agent_tools.wires.opened import Opened, Place, Processes

MAX_PRINTED = MIB  # characters of stdout that are answered, the first ones
MAX_LINE = 4 * MIB  # bytes of a line, with all calls that it makes
MAX_CALLS = 200  # in one line
LONGEST = 600.0  # seconds that a script lives, the client's tools included
_SOURCE = Path(__file__).parent / "guest" / "script.py"


@dataclass
class ScriptLines:
    """The output lines of a script: printed text and calls of tools. Nothing in them is trusted."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    is_broken: bool = False
    _printed: list[str] = field(default_factory=list)
    _room: int = MAX_PRINTED
    _rest: bytes = b""

    @property
    def printed(self) -> str:
        """The text that was printed."""
        return "".join(self._printed)

    def feed(self, data: bytes) -> None:
        """Read the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.is_broken = self.is_broken or len(self._rest) > MAX_LINE
        for line in lines:
            try:
                given = json.loads(line) if len(line) <= MAX_LINE else None
            except (ValueError, RecursionError):
                given = None
            if not isinstance(given, dict):
                self.is_broken = True
                continue
            out, calls = given.get("out"), given.get("calls")
            if isinstance(out, str) and self._room:
                self._printed.append(out[: self._room])
                self._room -= len(self._printed[-1])
            if isinstance(calls, list) and len(calls) <= MAX_CALLS:
                self.calls += [each for each in calls if _is_call(each)]


def _is_call(each: Any) -> bool:
    if not isinstance(each, dict) or set(each) != {"id", "name", "input"}:
        return False
    return isinstance(each["id"], str) and isinstance(each["name"], str) and isinstance(each["input"], dict)


@dataclass
class StartedScript:
    """A started script, and how far its output was read."""

    thing: Opened[AsyncProcess]
    session: str
    seconds: float
    files: Callable[[], list[dict[str, Any]]]
    lines: ScriptLines = field(default_factory=ScriptLines)
    cursor: Cursor = field(default_factory=Cursor)

    async def go_on(self) -> dict[str, Any]:
        """Return the answer to the client: calls of its tools, or the script's end."""
        process, deadline = self.thing.it, time.monotonic() + self.seconds
        self.lines.calls = []
        while not self.lines.calls:
            is_over, new = process.is_over, process.sync.read((self.cursor.stdout, 0))
            self.cursor = new.cursor
            self.lines.feed(new.stdout)
            if new.omitted or self.lines.is_broken:
                process.kill()
                return self._failed("stdout length exceeded")
            if self.lines.calls:
                break
            if is_over:
                return await self._ended()
            try:
                left = deadline - time.monotonic()
                await asyncio.wait_for(process.changed((self.cursor.stdout, process.place.stderr)), left)
            except asyncio.TimeoutError:
                process.kill()
                return self._failed("Time limit exceeded")
        answer = {"status": "tool_call_required", "continuation_token": self.thing.id, "session_id": self.session}
        return {**answer, "tool_calls": self.lines.calls}

    async def take(self, results: list[dict[str, Any]]) -> None:
        """Send the answers of tools to the script."""
        lines = b"".join(json.dumps(each).encode() + b"\n" for each in results)
        await self.thing.it.write_stdin(lines, 10)

    def _failed(self, why: str) -> dict[str, Any]:
        stderr = self.thing.it.sync.result().texts[1]
        answer = {"status": "error", "error": why, "session_id": self.session}
        return {**answer, "stdout": self.lines.printed, "stderr": stderr}

    async def _ended(self) -> dict[str, Any]:
        result = self.thing.it.sync.result()
        if not result.ok:
            code = f"Sandbox exited with code {result.exit_code}"
            return self._failed("Time limit exceeded" if result.timed_out else code)
        answer = {"status": "completed", "session_id": self.session, "stdout": self.lines.printed}
        return {**answer, "stderr": result.texts[1], "files": await aside(self.files)}


async def started(
    shelf: Processes, place: Place, container: Callable[[], str], code: str, names: list[str]
) -> Opened[AsyncProcess]:
    """Start a script that may call tools of these names."""
    given = json.dumps({"code": code, "tools": {identifier(name): name for name in names}})
    command = ["python3", "-I", "-c", _SOURCE.read_text(), given]
    options = {"stdin": b"", "timeout": LONGEST, "max_output": 2 * MAX_LINE}
    return await shelf.start(place, container, command=command, **options)


def identifier(name: str) -> str:
    """Return the function by which code calls a tool, as LibreChat tells the model."""
    text = re.sub(r"[^a-zA-Z0-9_]", "", re.sub(r"[-\s]", "_", name))
    text = f"_{text}" if text[:1].isdigit() else text
    return f"{text}_tool" if keyword.iskeyword(text) else text
