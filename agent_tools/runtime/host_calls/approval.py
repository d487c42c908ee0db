"""A question put before a host call is made: it is, only if the answer is True."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Union

from agent_tools.runtime.host_calls.function import CallRequest

Approve = Callable[[CallRequest], Union[bool, Awaitable[bool]]]


async def asked(approve: Approve, request: CallRequest) -> bool:
    """Ask for an approval; one that is not async may wait for a person, and so has a thread.

    Raises:
        TypeError: the answer is neither True nor False; a "no" that a person typed would be as true as any other text.
    """
    is_async = inspect.iscoroutinefunction(approve)
    answer = approve(request) if is_async else await asyncio.to_thread(approve, request)
    answer = await answer if isinstance(answer, Awaitable) else answer
    if not isinstance(answer, bool):
        raise TypeError(f"{request.name} was not called: its approval is {answer!r:.80}, and must be True or False.")
    return answer
