"""A run at a host (code, a command or an archive), as batches of items for its caller.

A thread runs it and puts items into a short queue, so that items of one moment are sent in one message. A batch ends
when nothing has come for LINGER seconds, at an item that the caller has to answer, and at the end. A slow caller blocks
the thread, as a slow reader on this machine would; if the caller is gone, the run is cancelled.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from agent_tools.errors import AgentToolsError, EngineError
from agent_tools.fleet.protocol import MAX_QUEUED_ITEMS, RUN_BYTES, CallMessage
from agent_tools.guest.wire.commands import CommandPrinted
from agent_tools.machine.rounds import begun
from agent_tools.results.outputs import Stream

LINGER = 0.002  # seconds
LOOK_SECONDS = 0.25  # seconds between two checks of a blocked thread whether it was cancelled

GIVEN_UP = "The answer was given up before it was read."

Put = Callable[[Any], None]
Batch = tuple[list[Any], bool]
"""Items, and whether they are the last."""


class Abandoned(AgentToolsError):
    """A run has no reader any more. Ends its thread; no caller sees it."""


class HostRun:
    """Runs `work` in a thread, with a function that queues an item; its exceptions are raised to the reader.

    `cancelled` is set when there is no reader any more. `at_end` may be called more than once; `at_read` is called once
    the result was read.
    """

    def __init__(self, work: Callable[[Put], None]) -> None:
        self.cancelled = threading.Event()
        self.at_end: Callable[[], object] = bool
        self.at_read: Callable[[], object] = bool
        self._work = work
        self._queue: queue.Queue[Any] = queue.Queue(MAX_QUEUED_ITEMS)
        self._is_abandoned = False

    def start(self) -> None:
        """Start the thread.

        Raises:
            EngineError: the thread cannot be started.
        """
        if begun(self._do, "agent-tools-run") is None:
            raise EngineError("The host has no thread for another run (pids limit, or ulimit -u). Run less at once.")

    def next(self) -> Batch:
        """Wait for the next items; return them, and whether they are the last. Raises what `work` raised."""
        items = self._items()
        over = items.pop() if isinstance(items[-1], _Over) else None
        if over and over.raised:
            if not items:
                raise over.raised
            self._queue.put(over)
            over = None
        return items, over is not None

    def abandon(self) -> None:
        """Cancel the run, which has no reader any more, and drop its remaining items."""
        self._is_abandoned = True
        self.cancelled.set()

    def put(self, item: Any) -> None:
        """Queue an item for the reader. Any thread may call it.

        Raises:
            Abandoned: there is no reader any more.
        """
        while not self._is_abandoned:
            with contextlib.suppress(queue.Full):
                return self._queue.put(item, timeout=LOOK_SECONDS)
        raise Abandoned

    def _do(self) -> None:
        raised: BaseException | None = None
        try:
            self._work(self.put)
        except BaseException as exc:  # noqa: BLE001  (raised to the reader, in his thread)
            raised = exc
        with contextlib.suppress(Abandoned):
            self.put(_Over(raised))

    def _first(self) -> Any:
        while not self._is_abandoned:
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=LOOK_SECONDS)
        raise EngineError(GIVEN_UP)

    def _items(self) -> list[Any]:
        batch = [self._first()]
        size = _size(batch[0])
        until = time.monotonic() + LINGER
        while size < RUN_BYTES and not isinstance(batch[-1], (CallMessage, _Over)):
            try:
                batch.append(self._queue.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
            size += _size(batch[-1])
        return batch


class _Over:
    """The end of a run."""

    def __init__(self, raised: BaseException | None) -> None:
        self.raised = raised


def _size(item: Any) -> int:
    """Return about how many bytes an item has."""
    match item:
        case bytes():
            return len(item)
        case CommandPrinted(data=data):
            return len(data)
        case Stream(text=text):
            return len(text)
    return 1024
