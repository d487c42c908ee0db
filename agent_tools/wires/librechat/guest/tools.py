"""The module `tools` of a script: calls that its code makes at once go to the host together."""

from __future__ import annotations

import asyncio
import json as _json
from functools import partial as _partial
from typing import Any

_MOST = 200  # calls that go together
_waiting: dict[asyncio.AbstractEventLoop, list[tuple[Any, asyncio.Future[Any]]]] = {}
_tasks: set[asyncio.Task[None]] = set()


async def _tool(name: str, /, **given: Any) -> Any:
    """Call a tool of the client."""
    call = {"name": name, "input": _json.loads(_json.dumps(given, default=str, allow_nan=False))}
    loop = asyncio.get_running_loop()
    _waiting.setdefault(loop, []).append((call, future := loop.create_future()))
    loop.call_soon(loop.call_soon, _send, loop)  # after other calls that begin at the same time
    return await future


def _send(loop: asyncio.AbstractEventLoop) -> None:
    """Send the calls that wait, if there are some."""
    calls = _waiting.pop(loop, [])
    for start in range(0, len(calls), _MOST):
        task = loop.create_task(_end(calls[start : start + _MOST]))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


async def _end(calls: list[tuple[Any, asyncio.Future[Any]]]) -> None:
    """End calls with the answers of the host."""
    try:
        answers = await _call("call_tools", ([call for call, _ in calls],), {})  # type: ignore[name-defined]  # noqa: F821
    except Exception as exc:  # noqa: BLE001  (each call raises it)
        answers = [{"is_error": True, "error_message": str(exc)}] * len(calls)
    for (_, future), answer in zip(calls, answers):
        if future.done():  # the code no longer waits for it
            continue
        if answer["is_error"]:
            future.set_exception(RuntimeError(answer["error_message"] or "The tool failed."))
        else:
            future.set_result(answer["result"])


def _define(tools: dict[str, str]) -> None:
    """Define the function of each tool."""
    globals().update({name: _partial(_tool, tool) for name, tool in tools.items()}, __all__=["asyncio", *tools])
