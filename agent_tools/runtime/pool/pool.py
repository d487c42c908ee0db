"""Pools of pre-warmed sandboxes, one pool for each key; a pool makes its sandboxes one at a time.

A thread makes missing sandboxes as soon as one was taken, replaces those older than `pool_max_age`, and makes no more
if no session has asked for that long. After an error it stops, writes one line to the log, and retries at the first
take after RETRY_SECONDS.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Union

from agent_tools.engines.engine import Engine
from agent_tools.errors import PreludeError
from agent_tools.machine.background import Do, start_thread
from agent_tools.runtime.files.empty_work_dir import EmptyWorkDir
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.pool.folder_swap import swap_in_folder
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.stoppable import StoppableEngine

Miss = Literal["empty", "failed", "folder", "ended"]
"""Why a session started cold: none was ready yet; none could be made; its work_dir is not one that can be replaced; all
that were ready had ended."""

WARM_UP = "__import__('sandbox').warm_up()"
SETTLE_SECONDS = 0.25  # seconds after a take before one is made, so that the session has its first result, a figure too

_log = logging.getLogger("agent_tools.pool")
RETRY_SECONDS = 60.0


@dataclass
class ReadySandbox:
    """A ready sandbox, its empty folder, and its creation time (seconds of the pool's clock)."""

    sandbox: LiveSandbox
    blank: EmptyWorkDir
    made_at: float

    @property
    def is_usable(self) -> bool:
        """True while it and its kernel live."""
        kernel = self.sandbox.kernel
        return kernel is not None and kernel.is_alive() and self.sandbox.is_usable

    def end(self, behind: Do) -> None:
        """End and remove it."""
        with ExitStack() as undo:
            undo.callback(self.blank.remove)
            undo.callback(self.sandbox.close)
            self.sandbox.end(behind)


Make = Callable[[Engine, SessionSpec], tuple[LiveSandbox, EmptyWorkDir]]


def make(engine: Engine, key: SessionSpec) -> tuple[LiveSandbox, EmptyWorkDir]:
    """Start a sandbox on an empty folder, and run one silent cell, since a kernel's first cell takes longer.

    The cell uses the preloaded modules, whose first use takes longer, too.

    Raises:
        AgentToolsError, OSError: it could not be started.
    """
    with ExitStack() as undo:
        blank = EmptyWorkDir(key.work_dir, engine.guest)
        undo.callback(blank.remove)
        spec = replace(key, work_dir=blank.path)
        sandbox = LiveSandbox(engine, spec, Quota(blank.path, spec.limits))
        undo.callback(sandbox.close)
        sandbox.define(WARM_UP, key.limits.start_timeout)
        sandbox.container.promote()
        undo.pop_all()
    return sandbox, blank


class Pool:
    """The pool of one key. Thread-safe. `behind` runs background work; `clock` returns seconds.

    The key specifies its sandboxes, except that its `work_dir` is the parent of theirs. They are identical for user
    code, and serve any session of an equal key.
    """

    def __init__(
        self,
        engine: Engine,
        key: SessionSpec,
        behind: Do,
        clock: Callable[[], float] = time.monotonic,
        make: Make = make,
    ) -> None:
        self.key = key
        self.takes: Counter[Literal["hit"] | Miss] = Counter()
        self.failure = ""
        """Why the latest sandbox could not be made; '' if it could."""
        self._engine, self._behind, self._clock, self._make = engine, behind, clock, make
        self._size = 0
        self._ready: deque[ReadySandbox] = deque()
        self._later: deque[Callable[[], None]] = deque()  # removals that need not delay a session
        self._asked_at = clock()
        self._taken_at = -float("inf")
        self._failed_at = -float("inf")
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> int:
        """The number of sandboxes that are ready now."""
        return len(self._ready)

    @property
    def asked_at(self) -> float:
        """The time (seconds of the clock) of the last request of a session."""
        return self._asked_at

    def keep(self, size: int) -> None:
        """Keep at least `size` sandboxes ready from now on."""
        with self._changed:
            self._asked_at, self._size = self._clock(), max(self._size, size)
            if self._thread is None and not self._is_closed:
                self._thread = start_thread(self._keep_filled, "agent-tools-pool")
            self._changed.notify_all()

    def wait(self, timeout: float) -> int:
        """Wait up to `timeout` seconds until all are ready or one failed; return how many are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready >= self._size or bool(self.failure), timeout)
            return self.ready

    def take_sandbox(self, spec: SessionSpec, quota: Quota) -> LiveSandbox | None:
        """Return a sandbox for this session; None if none is ready, so that the session starts cold.

        Raises:
            InvalidParams, EngineError: as a cold start's would be.
        """
        outcome = self._taken(spec, quota)
        with self._changed:
            self._asked_at = self._taken_at = self._clock()
            self.takes[outcome if isinstance(outcome, str) else "hit"] += 1
            self._changed.notify_all()
        return None if isinstance(outcome, str) else outcome

    def close(self, timeout: float | None = None) -> None:
        """Make no more, and remove the sandboxes that no session took.

        With `timeout` (seconds), a thread that is still making one after that removes it itself.
        """
        with self._changed:
            self._is_closed, thread = True, self._thread
            self._changed.notify_all()
        if thread:
            thread.join(timeout)
        self._end_ready()
        self._do_later()

    def _end_ready(self) -> None:
        while ready := self._pop():
            ready.end(self._behind)

    # -- taking -------------------------------------------------------------------------------------------------------

    def _taken(self, spec: SessionSpec, quota: Quota) -> Union[LiveSandbox, Miss]:
        miss: Miss = "failed" if self.failure else "empty"
        while ready := self._pop():
            if not ready.is_usable:
                self._later.append(partial(ready.end, self._behind))
                miss = "ended"
                continue
            try:
                return self._handed_over(ready, spec, quota) or self._given_back(ready)
            except PreludeError:  # a kernel that just died, or a prelude that fails: a cold start reports it
                ready.end(self._behind)
                return "ended"
            except BaseException:
                ready.end(self._behind)
                raise
        return miss

    def _pop(self) -> ReadySandbox | None:
        with self._changed:
            return self._ready.popleft() if self._ready else None

    def _handed_over(self, ready: ReadySandbox, spec: SessionSpec, quota: Quota) -> LiveSandbox | None:
        if self._engine.guest(spec.work_dir).shares_files:
            after = ExitStack()
            try:
                if not swap_in_folder(ready.blank.path, spec.work_dir, after):
                    return None
            finally:  # not before: it closes folders that are used here
                self._later.append(after.close)
            self._later.append(ready.blank.forget)
        else:
            self._later.append(ready.blank.remove)  # in the guest it is a folder of its own, which a mirror fills
        ready.sandbox.adopt(spec, quota)
        return ready.sandbox

    def _given_back(self, ready: ReadySandbox) -> Miss:
        if os.listdir(ready.blank.path):  # something that could not be moved back
            ready.end(self._behind)
            return "folder"
        with self._changed:
            self._ready.appendleft(ready)
            is_closed = self._is_closed
        if is_closed:
            self._end_ready()
        return "folder"

    # -- making -------------------------------------------------------------------------------------------------------

    def _keep_filled(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and not self._later and (seconds := self._idle_seconds()) > 0:
                    self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
                if self._is_closed:
                    return
                self._put_off_old()
                self._changed.wait_for(lambda: self._is_closed, self._taken_at + SETTLE_SECONDS - self._clock())
            self._do_later()
            if self._make_at() <= self._clock() and not self._is_closed:
                self._make_one()

    def _idle_seconds(self) -> float:
        """Return the seconds until there is work without a request."""
        old_at = [each.made_at + self.key.limits.pool_max_age for each in self._ready]
        return min([self._make_at(), *old_at]) - self._clock()

    def _make_at(self) -> float:
        """Return the time to make the next one; infinity if there are enough, or no session asked lately."""
        is_wanted = self._asked_at + self.key.limits.pool_max_age > self._clock() and self._asked_at >= self._failed_at
        if len(self._ready) >= self._size or not is_wanted:
            return float("inf")
        return self._failed_at + RETRY_SECONDS

    def _put_off_old(self) -> None:
        """Remove sandboxes that are too old."""
        oldest = self._clock() - self.key.limits.pool_max_age
        while self._ready and self._ready[0].made_at <= oldest:
            self._later.append(partial(self._ready.popleft().end, self._behind))

    def _do_later(self) -> None:
        while self._later:
            try:
                self._later.popleft()()
            except Exception as exc:  # noqa: BLE001  (the next session needs a sandbox all the same)
                _log.warning("A sandbox that was made ahead was not removed: %s", type(exc).__name__)

    def _make_one(self) -> None:
        try:
            sandbox, blank = self._make(self._engine, self.key)
        except Exception as exc:  # noqa: BLE001  (such as for want of threads or memory: sessions start cold meanwhile)
            reason = str(exc).strip() or type(exc).__name__
            with self._changed:
                is_stopped = isinstance(self._engine, StoppableEngine) and self._engine.is_stopped
                if not (self.failure or self._is_closed or is_stopped):
                    why = reason.rpartition("\n")[2]  # the last line of a traceback of the guest
                    _log.warning("No sandbox can be made ahead (%s); sessions start cold.", why)
                self.failure, self._failed_at = reason, self._clock()
                self._changed.notify_all()
            return
        with self._changed:
            self.failure = ""
            self._ready.append(ReadySandbox(sandbox, blank, self._clock()))
            self._changed.notify_all()
        if self._is_closed:
            self._end_ready()
