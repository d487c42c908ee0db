"""Runs Python whose tool calls the client answers: JSON lines on stdout are calls or text, on stdin lists of answers.

The first line on stdin is an object with the code and the tools, {function: name}. Calls that the code makes at the
same time are asked for together, and the code does nothing else until their answers have come.
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
from functools import partial
from itertools import count
from typing import Any

LARGEST = 64 * 1024  # characters that one line prints
MOST = 200  # calls that are asked for together
NO_ANSWER = {"is_error": True, "error_message": "There is no result of this call."}

out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
writing, asking = threading.Lock(), threading.Lock()
numbers = count()
calls: list[tuple[str, str, asyncio.Future[Any]]] = []  # to be asked for: ids, JSON


def say(line: str) -> None:
    """Write a line."""
    with writing:
        out.write(f"{line}\n")
        out.flush()


async def call(name: str, /, **given: Any) -> Any:
    """Call a tool."""
    loop, id_ = asyncio.get_running_loop(), f"call_{next(numbers):03}"
    line = json.dumps({"id": id_, "name": name, "input": given}, default=str, allow_nan=False)
    calls.append((id_, line, future := loop.create_future()))
    loop.call_soon(loop.call_soon, ask)  # after other calls that have begun at the same time
    return await future


def ask() -> None:
    """Ask for all calls, if there are some, and wait for their answers. Threads with their own loops take turns."""
    with asking:
        while calls:
            asked = calls[:MOST]
            del calls[: len(asked)]
            say('{"calls": [' + ", ".join(line for _, line, _ in asked) + "]}")
            answers = {each["call_id"]: each for each in json.loads(sys.stdin.readline())}
            for id_, _, future in asked:
                if not future.done():  # the code still waits for it
                    future.get_loop().call_soon_threadsafe(settle, future, answers.get(id_, NO_ANSWER))


def settle(future: asyncio.Future[Any], answer: dict[str, Any]) -> None:
    """End a call."""
    if future.done():
        return
    if answer.get("is_error"):
        future.set_exception(RuntimeError(answer.get("error_message") or "The tool failed."))
    else:
        future.set_result(answer.get("result"))


class ScriptStdout(io.TextIOBase):
    """The stdout of the code."""

    def write(self, text: str) -> int:
        """Print."""
        for start in range(0, len(text), LARGEST):
            say(json.dumps({"out": text[start : start + LARGEST]}, ensure_ascii=False))
        return len(text)


os.dup2(2, 1)  # the stdout of other programs is their stderr, so that no line of theirs asks
started = json.loads(sys.stdin.readline())
code = started["code"]
sys.stdout, sys.argv = ScriptStdout(), ["main.py"]
linecache.cache["<code>"] = (len(code), None, list(io.StringIO(code)), "<code>")
known: dict[str, Any] = {"__name__": "__main__", "asyncio": asyncio}
known |= {function: partial(call, name) for function, name in started["tools"].items()}
made = eval(compile(code, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)  # noqa: S307
if made is not None:  # a coroutine, since the code awaits
    asyncio.run(made)
