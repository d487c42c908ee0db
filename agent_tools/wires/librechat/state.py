"""Scripts whose tool calls LibreChat answers: their process waits between requests for the answers.

These are no host calls: calls that a script makes at once are one answer to LibreChat, so the script collects them, and
a script is a process of its own, which ends without the session's kernel.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import BaseModel, ValidationError

from agent_tools.bodies.json_body import BodyRefused, at_most, parsed
from agent_tools.limits import KIB, MIB
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.open_resources import OpenResource, followed
from agent_tools.wires.routing import aside

MAX_PRINTED = MIB  # characters of stdout that are answered, the first ones
MAX_LINE = 4 * MIB  # bytes of a line, with all calls that it makes
MAX_CALLS = 200  # in one line
AHEAD = 256 * KIB  # bytes of lines that a script may write before they are read
LONGEST = 600.0  # seconds that a script lives, the client's tools included
_PRINTS = b'{"out": '
SOURCE = Path(__file__).parent / "guest" / "script.py"


class _ToolCall(BaseModel):
    id: str
    name: str
    input: dict[str, Any]


class _Line(BaseModel):
    """A line of a script: printed text, or calls of tools that it makes at once."""

    out: str = ""
    calls: Annotated[list[_ToolCall], at_most(MAX_CALLS)] = []


@dataclass
class ScriptLines:
    """The output lines of a script, at most `MAX_PRINTED` characters of what it printed. Nothing in them is trusted."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    is_broken: bool = False
    printed: StringIO = field(default_factory=StringIO)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Read the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.is_broken = self.is_broken or max(map(len, (self._rest, *lines))) > MAX_LINE
        for line in [] if self.is_broken else lines:
            if line.startswith(_PRINTS) and self.printed.tell() >= MAX_PRINTED:
                continue  # the rest is left out
            try:
                given = _Line.model_validate(parsed(line))
            except (BodyRefused, ValidationError):
                self.is_broken = True
                return
            self.printed.write(given.out[: MAX_PRINTED - self.printed.tell()])
            self.calls += [each.model_dump() for each in given.calls]


@dataclass
class StartedScript:
    """A started script, and how far its output was read."""

    thing: OpenResource[AsyncProcess]
    session: str
    seconds: float
    files: Callable[[], list[dict[str, Any]]]
    is_waiting: bool = False
    lines: ScriptLines = field(default_factory=ScriptLines)
    cursor: Cursor = field(default_factory=Cursor)

    async def go_on(self) -> dict[str, Any]:
        """Return the answer to the client: calls of its tools, or the script's end."""
        self.lines.calls = []
        try:
            with anyio.fail_after(self.seconds):
                async with aclosing(followed(self.thing.it, self.cursor, AHEAD)) as outputs:
                    async for new in outputs:
                        self.cursor = new.cursor
                        await aside(self.lines.feed, new.stdout)
                        if new.omitted or self.lines.is_broken:
                            return self._failed("stdout length exceeded")
                        if self.lines.calls:
                            self.is_waiting = True
                            return {
                                "status": "tool_call_required",
                                "continuation_token": self.thing.id,
                                "session_id": self.session,
                                "tool_calls": self.lines.calls,
                            }
        except TimeoutError:
            return self._failed("Time limit exceeded")
        result = self.thing.it.sync.result()
        if not result.ok:
            code = f"Sandbox exited with code {result.exit_code}"
            return self._failed("Time limit exceeded" if result.timed_out else code)
        return {**self._printed("completed"), "files": await aside(self.files)}

    async def send_results(self, results: list[dict[str, Any]]) -> None:
        """Send the answers of tools to the script."""
        self.is_waiting = False
        await self.thing.it.write_stdin(json.dumps(results).encode() + b"\n", 10)

    def _failed(self, why: str) -> dict[str, Any]:
        self.thing.it.kill()
        return {**self._printed("error"), "error": why}

    def _printed(self, status: str) -> dict[str, Any]:
        stdout, stderr = self.lines.printed.getvalue(), self.thing.it.sync.result().texts[1]
        return {"status": status, "session_id": self.session, "stdout": stdout, "stderr": stderr}


def identifier(name: str) -> str:
    """Return the function by which code calls a tool, as LibreChat tells the model."""
    text = re.sub(r"[^a-zA-Z0-9_]", "", re.sub(r"[-\s]", "_", name))
    text = f"_{text}" if text[:1].isdigit() else text
    return f"{text}_tool" if keyword.iskeyword(text) else text
