"""Runs Python whose tool calls the client answers: JSON lines on stdout are calls or text, on stdin lists of answers.

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

    def say(self, **line: Any) -> None:
        """Write a line."""
        with self._lock:
            self._out.write(json.dumps(line, default=str) + "\n")
            self._out.flush()

    async def call(self, name: str, given: dict[str, Any]) -> Any:
        """Call a tool."""
        loop, id_ = asyncio.get_running_loop(), f"call_{len(self._waiting):03}"
        self._waiting[id_] = future = loop.create_future()
        self._asked.append({"id": id_, "name": name, "input": given})
        if len(self._asked) == 1:
            loop.call_soon(loop.call_soon, self._ask)  # after other calls that have begun at the same time
        return await future

    def _ask(self) -> None:
        """Ask for all calls, and wait for their answers, one line. Until then the code does nothing else."""
        self.say(calls=self._asked)
        self._asked = []
        for answer in json.loads(sys.stdin.readline()):
            future = self._waiting[answer["call_id"]]
            if future.done():  # the code no longer waits for it
                continue
            if answer.get("is_error"):
                future.set_exception(RuntimeError(answer.get("error_message") or "The tool failed."))
            else:
                future.set_result(answer.get("result"))


class ScriptStdout(io.TextIOBase):
    """The stdout of the code."""

    def __init__(self, pipe: HostPipe) -> None:
        self._pipe = pipe

    def write(self, text: str) -> int:
        """Print; halves of characters, which no JSON may have, become question marks."""
        text = text.encode("utf-8", "replace").decode()
        for start in range(0, len(text), LARGEST):
            self._pipe.say(out=text[start : start + LARGEST])
        return len(text)


def main() -> None:
    """Run the code of the argument. A failure is printed, and the process ends, as Python does."""
    given, pipe = json.loads(sys.argv[1]), HostPipe()
    code = given["code"]
    sys.stdout = ScriptStdout(pipe)
    sys.argv = ["main.py"]
    linecache.cache["<code>"] = (len(code), None, list(io.StringIO(code)), "<code>")
    known: dict[str, Any] = {"__name__": "__main__", "asyncio": asyncio}
    for function, name in given["tools"].items():
        known[function] = lambda name=name, **given: pipe.call(name, given)
    made = eval(compile(code, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)  # noqa: S307
    if made is not None:  # a coroutine, since the code awaits
        asyncio.run(made)


main()
