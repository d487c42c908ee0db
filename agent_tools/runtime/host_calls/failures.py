"""Every exception of a host function fails only its own call."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from typing import Any

from agent_tools.errors import AgentToolsError
from agent_tools.runtime.host_calls.function import Approve, CallRequest, HostFunction, Keywords


class Escaped(AgentToolsError):
    """A host function raised an exception (the cause) that would have ended the event loop."""


async def called(function: HostFunction, args: tuple[Any, ...], kwargs: Keywords) -> Any:
    """Call a function.

    Raises:
        Escaped: it raised SystemExit or the like.
    """
    try:
        return await function.call(args, kwargs)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:
        if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C of the user
        raise Escaped from exc


def failure(exc: BaseException) -> tuple[str, str]:
    """Return the type and the text of a function's exception; making the text may fail, too."""
    cause = exc.__cause__ or exc if isinstance(exc, Escaped) else exc
    try:
        return type(cause).__name__, str(cause)
    except Exception as again:  # noqa: BLE001  (code of the function's)
        return type(cause).__name__, f"its text could not be made ({type(again).__name__})"


async def is_approved(approve: Approve, request: CallRequest) -> bool:
    """Call an approval; a function that is not async may wait for a person, so it runs in a thread.

    Raises:
        TypeError: the answer is neither True nor False; the text "no" would count as true.
    """
    is_async = inspect.iscoroutinefunction(approve)
    answer = approve(request) if is_async else await asyncio.to_thread(approve, request)
    answer = await answer if isinstance(answer, Awaitable) else answer
    if not isinstance(answer, bool):
        raise TypeError(f"{request.name} was not called: its approval is {answer!r:.80}, and must be True or False.")
    return answer
