"""An engine whose owner can stop waiting for it, since an engine may take minutes for a start or a removal.

Theory of operation
    Each start runs in a thread of its own, and the caller waits for its future. `stop` cancels these futures, so that
    callers fail at once; a sandbox that comes up afterwards is removed by the thread that started it. From then on
    `remove` only queues a sandbox, for a few threads. `settle` waits for all these threads, for a limited time:
    sandboxes also end with the process, and the next process sweeps their remains.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import partial
from pathlib import Path

from agent_tools.engines.engine import Engine, EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.errors import EngineError, SandboxStartError
from agent_tools.machine.background import MOST_AT_ONCE, start_thread

SETTLE_SECONDS = 5.0  # for removals, once stopped
STOPPED = "No sandbox is started any more: the process that would use it is stopping."

_log = logging.getLogger("agent_tools.runtime")


class Stopping(SandboxStartError):
    """The sandbox is not wanted any more."""


class StoppableEngine:
    """Implements the Engine protocol on another engine. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self.is_stopped = False
        self._engine = engine
        self._changed = threading.Condition()
        self._starts: set[Future[EngineContainer]] = set()
        self._live: dict[str, EngineContainer] = {}
        self._removals: deque[EngineContainer] = deque()
        self._removers = 0

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return the user of the guest's processes in a sandbox of this work_dir."""
        return self._engine.guest(work_dir)

    def start(self, spec: SandboxSpec) -> EngineContainer:
        """Create and start a sandbox.

        Raises:
            Stopping: `stop` has been called.
        """
        start: Future[EngineContainer] = Future()
        with self._changed:
            if self.is_stopped:
                raise Stopping(STOPPED)
            self._starts.add(start)
        work = partial(self._start, start, spec)
        try:
            if start_thread(work, "agent-tools-start") is None:
                work()
            return start.result()
        except CancelledError:
            raise Stopping(STOPPED) from None
        except BaseException:
            if not start.cancel() and start.exception() is None:  # Ctrl-C as the sandbox came up
                self.remove(start.result())
            raise

    def remove(self, sandbox: EngineContainer) -> None:
        """End and remove a sandbox; once stopped, behind the caller."""
        with self._changed:
            is_known = self._live.pop(sandbox.id, None) is not None
            if self.is_stopped:
                self._removals.extend([sandbox] if is_known else [])
                self._begin_remover()
                return
        self._engine.remove(sandbox)

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        """Return None while a sandbox that is starting runs.

        Raises:
            Stopping: `stop` has been called.
        """
        if self.is_stopped:
            raise Stopping(STOPPED)
        return self._engine.last_words(sandbox, spec)

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        """Return every sandbox with these labels."""
        return self._engine.strays(host)

    def stop(self) -> None:
        """Start no more sandboxes: pending starts fail at once, and removals run in the background."""
        with self._changed:
            self.is_stopped = True
            starts = list(self._starts)
        for start in starts:
            start.cancel()

    def remove_rest(self) -> None:
        """Remove every sandbox that is left."""
        for sandbox in list(self._live.values()):
            self.remove(sandbox)

    def settle(self, deadline: float | None = None) -> None:
        """Wait for starts that were cancelled, and for removals, until the deadline at most (monotonic seconds)."""
        timeout = None if deadline is None else deadline - time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self._removers and not self._has_cancelled(), timeout)

    def _has_cancelled(self) -> bool:
        return any(start.cancelled() for start in self._starts)

    def _start(self, start: Future[EngineContainer], spec: SandboxSpec) -> None:
        try:
            sandbox = self._engine.start(spec)
            with self._changed:
                self._live[sandbox.id] = sandbox
            try:
                start.set_result(sandbox)
            except InvalidStateError:  # cancelled
                if sandbox.stdio:
                    sandbox.stdio.close()
                self.remove(sandbox)
        except BaseException as exc:  # noqa: BLE001  (raised in the caller's thread)
            with contextlib.suppress(InvalidStateError):
                start.set_exception(exc)
        finally:
            with self._changed:
                self._starts.discard(start)
                self._changed.notify_all()

    def _begin_remover(self) -> None:
        """With the lock: have one more thread for the queue of removals, up to a few."""
        if self._removers < MOST_AT_ONCE and self._removals and start_thread(self._work_off_removals):
            self._removers += 1

    def _work_off_removals(self) -> None:
        while True:
            with self._changed:
                if not self._removals:
                    self._removers -= 1
                    self._changed.notify_all()
                    return
                sandbox = self._removals.popleft()
            try:
                self._engine.remove(sandbox)
            except EngineError:
                pass
            except Exception:  # noqa: BLE001  (the others are removed all the same)
                _log.exception("A sandbox could not be removed.")
