"""The event loop whose tasks a run's host calls are to be: that of whoever asked for the run, and awaits it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

serving_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("serving_loop", default=None)
