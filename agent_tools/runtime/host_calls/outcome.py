"""The outcome of a host function, whatever it raises: an error of its call, and of nothing else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agent_tools.errors import AgentToolsError
from agent_tools.runtime.host_calls.function import HostFunction, Keywords


class Escaped(AgentToolsError):
    """A host function raised, as its cause, what would have ended the event loop, and whoever runs it, too."""


async def called(function: HostFunction, args: tuple[Any, ...], kwargs: Keywords) -> Any:
    """Call a function.

    Raises:
        Escaped: it left as a program does, by SystemExit or the like.
    """
    try:
        return await function.call(args, kwargs)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:
        if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the person's own
        raise Escaped from exc


def failure(exc: BaseException) -> tuple[str, str]:
    """Return the name and the text of what a function raised; making the text may fail itself."""
    cause = exc.__cause__ or exc if isinstance(exc, Escaped) else exc
    try:
        return type(cause).__name__, str(cause)
    except Exception as again:  # noqa: BLE001  (code of the function's)
        return type(cause).__name__, f"its text could not be made ({type(again).__name__})"
