"""Runs Python whose tool calls the client answers: JSON lines on stdout are calls or text, on stdin answers.

The argument is an object with the code and the tools, {function: name}. Calls that the code makes at the same time are
asked for together.
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import linecache
import os
import sys
import threading
import traceback
from typing import Any

LARGEST = 64 * 1024  # characters that one line prints


class HostPipe:
    """Sends calls, and receives answers."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # the stdout of other programs is their stderr, so that no line of theirs asks
        self._lock = threading.Lock()
        self._asked: list[dict[str, Any]] = []
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._loop = asyncio.new_event_loop()

    def say(self, **line: Any) -> None:
        """Write a line."""
        with self._lock:
            self._out.write(json.dumps(line, default=str) + "\n")
            self._out.flush()

    async def call(self, name: str, given: dict[str, Any]) -> Any:
        """Call a tool."""
        id_ = f"call_{len(self._waiting):03}"
        self._waiting[id_] = future = self._loop.create_future()
        self._asked.append({"id": id_, "name": name, "input": given})
        if len(self._asked) == 1:
            self._loop.call_soon(self._loop.call_soon, self._ask)  # after other calls that have begun at the same time
        return await future

    def _ask(self) -> None:
        self.say(calls=self._asked)
        self._asked = []

    def hear(self) -> None:
        """Receive answers until the end of stdin."""
        for line in sys.stdin:
            self._loop.call_soon_threadsafe(self._take, json.loads(line))

    def _take(self, answer: dict[str, Any]) -> None:
        future = self._waiting[answer["call_id"]]
        if future.done():
            return
        if answer.get("is_error"):
            future.set_exception(RuntimeError(answer.get("error_message") or "The tool failed."))
        else:
            future.set_result(answer.get("result"))

    def run(self, code: str, tools: dict[str, str]) -> None:
        """Run code; a failure is printed as Python does."""
        linecache.cache["<code>"] = (len(code), None, code.splitlines(keepends=True), "<code>")
        known: dict[str, Any] = {"__name__": "__main__", "asyncio": asyncio}
        for function, name in tools.items():
            known[function] = lambda name=name, **given: self.call(name, given)
        compiled = compile(code, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        made = eval(compiled, known)  # noqa: S307  (a coroutine if it awaits)
        if made is not None:
            self._loop.run_until_complete(made)


class ScriptStdout(io.TextIOBase):
    """The stdout of the code."""

    def __init__(self, wire: HostPipe) -> None:
        self._wire = wire

    def write(self, text: str) -> int:
        """Print; halves of characters, which no JSON may have, become question marks."""
        text = text.encode("utf-8", "replace").decode()
        for start in range(0, len(text), LARGEST):
            self._wire.say(out=text[start : start + LARGEST])
        return len(text)


def main() -> None:
    """Run the code of the argument."""
    given, wire = json.loads(sys.argv[1]), HostPipe()
    sys.stdout = ScriptStdout(wire)
    sys.argv = ["main.py"]
    threading.Thread(target=wire.hear, daemon=True).start()
    code = 1
    try:
        wire.run(given["code"], given["tools"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  (as Python's own)
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


main()
