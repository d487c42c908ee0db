"""Owns all sessions of this process: opens, finds and closes them, and removes remains of dead processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import Images
from agent_tools.engines.engine import Engine, EngineContainer
from agent_tools.engines.guest import Guest
from agent_tools.engines.recipe import RecipeLike
from agent_tools.errors import AgentToolsError
from agent_tools.machine.background import Background, do_all
from agent_tools.machine.descriptors import raise_limit
from agent_tools.machine.owner import Owner, orphans, same_user
from agent_tools.machine.private_folder import remove_stale_run_dirs
from agent_tools.runtime.files.empty_work_dir import remove_stale_empty_work_dirs
from agent_tools.runtime.files.temp_work_dir import remove_stale_temp_work_dirs
from agent_tools.runtime.pool.pools import Pools, PoolState
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from agent_tools.runtime.stoppable import SETTLE_SECONDS, StoppableEngine


class Runtime:
    """Sessions by key. Thread-safe; a forked child starts with none and leaves its parent's alone."""

    def __init__(self, engine: Engine, ensure_image: Callable[[RecipeLike], str]) -> None:
        self.engine = engine
        self.ensure_image = ensure_image
        """Returns the tag of the image of a recipe, after building it if it is missing."""
        self._lock = threading.RLock()  # a finalizer may run in the very thread that holds it
        self._sessions: dict[str, Session] = {}
        self._pid = os.getpid()
        self._has_swept = False
        self._deadline: float | None = None  # of `settle` (monotonic seconds), set once stopped
        self._begin()
        atexit.register(self.close_all)

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return the user of the guest's processes in a sandbox of this work_dir. Raises EngineError."""
        return self.engine.guest(work_dir)

    def ask_engine(self) -> None:
        """Check that the engine answers.

        Raises:
            EngineError: it does not answer.
        """
        self.engine.guest()
        self.engine.strays(Owner.current().labels)

    def open(self, key: str, spec: SessionSpec) -> Session:
        """Return the open session of this key, made if there is none; its sandbox starts with its first run."""
        self._begin_once()
        with self._lock:
            self._forget_parents()
            session = self._sessions.get(key)
            if session is None or session.is_closed:
                session = self._sessions[key] = Session(self._engine, spec, self._background.do, self._pools.start)
            return session

    def prepare(self, spec: SessionSpec, timeout: float = 0.0) -> int:
        """Begin to make sandboxes ahead for sessions like this; wait up to `timeout` seconds; return the number ready.

        Raises:
            EngineError: the engine cannot be reached.
        """
        self._begin_once()
        with self._lock:
            self._forget_parents()
            pools = self._pools
        return pools.prepare(spec, timeout)

    @property
    def pools(self) -> PoolState:
        """Statistics of the sandboxes made ahead."""
        with self._lock:
            self._forget_parents()
            return self._pools.state()

    def find(self, key: str) -> Session | None:
        """Return the open session of this key, or None."""
        with self._lock:
            self._forget_parents()
            session = self._sessions.get(key)
        return session if session and not session.is_closed else None

    def close(self, key: str) -> None:
        """Close one session; a missing one is not an error."""
        with self._lock:
            self._forget_parents()
            session = self._sessions.pop(key, None)
        if session:
            session.close()

    def close_all(self) -> None:
        """Close every session of this process, several at once, and wait until all are removed."""
        with self._lock:
            self._forget_parents()
            sessions = list(self._sessions.values())
            self._sessions.clear()
        do_all(session.close for session in sessions)
        self.close_pools()
        self.settle()

    def close_pools(self) -> None:
        """Remove unused sandboxes made ahead; the next session that asks for one starts a new pool."""
        if not self._engine.is_stopped:
            self._pools.close()
            return
        self._engine.remove_rest()  # one that is being made, too
        self._pools.close(self._settled_by() - time.monotonic())

    def stop(self) -> None:
        """Start no more sandboxes in this process: pending starts fail at once, and removals run in the background.

        From now on `close_pools`, `settle` and `close_all` end every sandbox, and wait SETTLE_SECONDS at most in total.
        """
        self._engine.stop()

    def settle(self) -> None:
        """Wait until the engine has removed all closed sandboxes."""
        if not self._engine.is_stopped:
            self._engine.settle(time.monotonic() + SETTLE_SECONDS)  # sandboxes of starts that Ctrl-C cancelled
            self._background.join()
            return
        self._engine.remove_rest()
        self._engine.settle(self._settled_by())
        self._background.join(self._settled_by())

    def _settled_by(self) -> float:
        if self._deadline is None:
            self._deadline = time.monotonic() + SETTLE_SECONDS
        return self._deadline

    def sweep(self) -> list[EngineContainer]:
        """Remove the sandboxes and folders of this user's processes that are gone; return the sandboxes."""
        removed = orphans(self.engine.strays(same_user()))
        do_all(partial(self.engine.remove, sandbox) for sandbox in removed)
        remove_stale_empty_work_dirs()
        remove_stale_run_dirs()
        remove_stale_temp_work_dirs()
        return removed

    def _begin_once(self) -> None:
        """At first use in this process, raise the limit on descriptors, and sweep in the background."""
        if not self._has_swept:
            self._has_swept = True
            raise_limit()
            self._background.do(self._try_to_sweep)

    def _try_to_sweep(self) -> None:
        """Sweep; ignore failures of the engine, which the next start reports."""
        with contextlib.suppress(AgentToolsError, OSError):
            self.sweep()

    def _forget_parents(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._sessions = {}
            self._begin()

    def _begin(self) -> None:
        self._engine = StoppableEngine(self.engine)
        self._background = Background()
        self._pools = Pools(self._engine, self._background.do)


def docker_runtime() -> Runtime:
    """Return a runtime on the Docker engine of this machine."""
    engine = DockerEngine()
    return Runtime(engine, Images(engine).ensure)
