"""Scripts whose tool calls LibreChat answers: their process waits between requests for the answers.

These are no host calls, which a fresh kernel for each script could make. A script ends as a program does: buffered
files are written, threads are awaited, exit functions run, and there is an exit code; a kernel is killed. And host
calls belong to the event loop that awaits the run, in which the client's large results would be encoded.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import BaseModel

from agent_tools.bodies.json_body import BodyRefused, at_most, parsed
from agent_tools.limits import MIB
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.open_resources import TYPING_SECONDS, OpenResource, followed
from agent_tools.wires.routing import aside

MAX_PRINTED = MIB  # characters of stdout that are answered, the first ones
MAX_LINE = 4 * MIB  # bytes of a line, with all calls that it makes
MAX_CALLS = 200  # in one line
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
    printed: StringIO = field(default_factory=StringIO)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Read the next bytes.

        Raises:
            BodyRefused, ValueError: they are no such lines.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (self._rest, *lines))) > MAX_LINE:
            raise ValueError("a line is too long")
        for line in lines:
            if not line.startswith(_PRINTS) or self.printed.tell() < MAX_PRINTED:  # the rest is left out
                given = _Line.model_validate(parsed(line))
                self.printed.write(given.out[: MAX_PRINTED - self.printed.tell()])
                self.calls += [each.model_dump() for each in given.calls]


@dataclass
class StartedScript:
    """A started script, and how far its output was read."""

    thing: OpenResource[AsyncProcess]
    session: str
    seconds: float
    files: Callable[[], list[dict[str, Any]]]
    lines: ScriptLines = field(default_factory=ScriptLines)
    cursor: Cursor = field(default_factory=Cursor)

    async def go_on(self) -> dict[str, Any]:
        """Return the answer to the client: calls of its tools, or the script's end."""
        try:
            with anyio.fail_after(self.seconds):
                async with aclosing(followed(self.thing.it, self.cursor)) as outputs:
                    async for new in outputs:
                        self.cursor = new.cursor
                        if new.omitted:
                            return self._failed("stdout length exceeded")
                        await aside(self.lines.feed, new.stdout)
                        if calls := self.lines.calls:
                            ids = {"continuation_token": self.thing.id, "session_id": self.session}
                            return {"status": "tool_call_required", **ids, "tool_calls": calls}
        except TimeoutError:
            return self._failed("Time limit exceeded")
        except (BodyRefused, ValueError):
            return self._failed("stdout length exceeded")
        result = self.thing.it.sync.result()
        if not result.ok:
            code = f"Sandbox exited with code {result.exit_code}"
            return self._failed("Time limit exceeded" if result.timed_out else code)
        return {**self._printed("completed"), "files": await aside(self.files)}

    async def send_results(self, results: Sequence[BaseModel]) -> None:
        """Send the answers of tools to the script."""
        self.lines.calls = []
        line = await aside(lambda: json.dumps([each.model_dump() for each in results]).encode() + b"\n")
        with suppress(BrokenPipeError):  # it has ended, as `go_on` says
            await self.thing.it.write_stdin(line, TYPING_SECONDS)

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
