"""Scripts whose tool calls LibreChat answers: code in a kernel of its own, whose host function waits for the client."""

from __future__ import annotations

import asyncio
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue, TypeAdapter
from typing_extensions import TypedDict

from agent_tools.bodies.json_body import at_most
from agent_tools.code_mode.toolset import Toolset
from agent_tools.errors import AgentToolsError
from agent_tools.limits import MIB, CallLimits
from agent_tools.runtime.in_thread import in_thread
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.librechat.answers import TOO_LATE, failure_of, printed
from agent_tools.wires.open_resources import CodeRun
from agent_tools.wires.routing import aside

MAX_CALLS = 200  # that are made at once, and that one answer asks for
LONGEST = 600.0  # seconds that a script lives, the client's tools included
LIMITS = CallLimits(
    max_calls=10_000,
    call_timeout=LONGEST,
    max_host_seconds=32 * LONGEST,  # as 32 run at the same time
    max_open_bytes=8 * MIB,  # which wait for a client that may stay away
)
NO_ANSWER = {"is_error": True, "error_message": "There is no result of this call."}
_GUEST = (Path(__file__).parent / "guest" / "tools.py").read_text()
_JSON = TypeAdapter(dict[str, JsonValue])


class ToolCall(TypedDict):
    """A call of a tool."""

    name: str
    input: Annotated[dict[str, Any], AfterValidator(_JSON.validate_python)]


class ClientTools(Toolset):
    """The tools of a script, {function: tool}, and the calls that wait for the client. For one event loop.

    Attributes:
        changed: set with each new call.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__([self.call_tools])
        self.changed = asyncio.Event()
        self._names = {identifier(name): name for name in names}
        self._ids = count()
        self._new: dict[str, tuple[ToolCall, asyncio.Future[Any]]] = {}
        self._asked: dict[str, asyncio.Future[Any]] = {}

    def source(self) -> str:
        """Return the code that defines the functions in the kernel."""
        return f"__import__('sandbox').define('tools', {f'{_GUEST}_define({self._names!r})'!r})"

    async def call_tools(self, calls: Annotated[list[ToolCall], at_most(MAX_CALLS)]) -> list[Any]:
        """Return the client's answers to calls."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Any]] = [loop.create_future() for _ in calls]
        self._new.update({f"call_{next(self._ids):03}": each for each in zip(calls, waiting)})
        self.changed.set()
        return await asyncio.gather(*waiting)

    def ask(self) -> list[dict[str, Any]]:
        """Return calls that the client was not told of yet, without those for which the code no longer waits."""
        asked = [(id_, *self._new.pop(id_)) for id_ in list(self._new)[:MAX_CALLS]]
        self._asked |= {id_: future for id_, _, future in asked if not future.done()}
        return [{"id": id_, **call} for id_, call, future in asked if not future.done()]

    def answer(self, results: Mapping[str, Any]) -> bool:
        """End the calls that the client was told of, each with its result; return False if there are none."""
        asked, self._asked = self._asked, {}
        for id_, future in asked.items():
            if not future.done():
                future.set_result(results.get(id_, NO_ANSWER))
        return bool(asked)


class ToolScript:
    """A script that runs in `kernel`, which it closes in the end, and what the client is told of it.

    A request waits `seconds`. What it printed begins with `remark`; `files` lists the files that it changed, blocking.
    """

    def __init__(
        self,
        kernel: Sandbox,
        tools: ClientTools,
        code: str,
        seconds: float,
        remark: str = "",
        files: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self.tools = tools
        self.files = files
        self.is_over = False
        self._kernel, self._code, self._seconds = kernel, code, seconds
        self._run = CodeRun()
        self._stdout, self._stderr, self._error = remark, "", ""

    async def wait(self) -> None:
        """Run it to its end."""
        try:
            await in_thread(self._work, self._run.cancel)
        except AgentToolsError as exc:
            self._error = str(exc)
        finally:
            self.is_over = True
            self.tools.changed.set()

    def kill(self) -> None:
        """End its code, and its kernel."""
        self._run.cancel()
        self._kernel.close()

    async def go_on(self) -> dict[str, Any]:
        """Return what the client is told next: calls of its tools, or the script's end."""
        try:
            async with asyncio.timeout(self._seconds):
                if calls := await self._new_calls():
                    return {"status": "tool_call_required", "tool_calls": calls}
        except TimeoutError:
            await aside(self._run.cancel)
            while not self.is_over:
                await self._new_calls()
            self._error = TOO_LATE
        told = {"status": "error", "error": self._error} if self._error else {"status": "completed"}
        return {**told, "stdout": self._stdout, "stderr": self._stderr, "files": await aside(self.files)}

    async def _new_calls(self) -> list[dict[str, Any]]:
        """Wait for calls, and return them; none if the script has ended."""
        while not (calls := self.tools.ask()) and not self.is_over:
            self.tools.changed.clear()
            await self.tools.changed.wait()
        return calls

    def _work(self) -> None:
        done = self._run.of(self._kernel).run_code(self._code, timeout=LONGEST, cancelled=self._run.event)
        self._error = failure_of(done)
        stdout, self._stderr = printed(self._kernel, done)
        self._stdout += stdout


def identifier(name: str) -> str:
    """Return the function by which code calls a tool, as LibreChat tells the model."""
    text = re.sub(r"[^a-zA-Z0-9_]", "", re.sub(r"[-\s]", "_", name))
    text = f"_{text}" if text[:1].isdigit() else text
    return f"{text}_tool" if keyword.iskeyword(text) else text
