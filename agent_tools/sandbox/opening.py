"""The session of one sandbox, opened at first use, and its folder."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_tools.machine import event_loop
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.sandbox.sandbox_start import start_errors
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from agent_tools.sandbox.options import Options

if TYPE_CHECKING:
    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.runtime.runtime import Runtime
    from agent_tools.sandbox.host_side import HostSide


class Opening:
    """Opens at most one session at a time; thread-safe. When it is garbage-collected, its session is closed."""

    def __init__(self, options: Options, runtime: Runtime | None, *, takes_functions: bool) -> None:
        self.options = options
        self.key = str(uuid.uuid4())
        self._runtime = runtime
        self._takes_functions = takes_functions
        self._folder = options.work_dir
        self._workspace: Workspace | None = None
        self._finalizer: Callable[[], Any] | None = None
        self._pid = 0  # pid of the process that opened it
        self._lock = threading.RLock()
        self._preparing = threading.Lock()

    def session(self) -> Session:
        """Return the session, opened if needed; its container starts at first use."""
        if not self.find():
            self._prepare()
        with self._lock:
            self._leave_to_parent()
            runtime = self._open_runtime()
            if session := runtime.find(self.key):
                return session
            spec = self._spec(self.workspace.path)
            if self._has_functions:
                calls, prelude = _host_side().of(self.options)
                spec = replace(spec, host_calls=calls, prelude=prelude)
            self._finalize_with(None)
            return runtime.open(self.key, spec)

    def prepare_pool(self, timeout: float) -> int:
        """Begin to fill the pool, wait up to `timeout` seconds until it is full, and return how many are ready."""
        self._prepare()
        with self._lock:
            folder = self.options.work_dir or Path(tempfile.gettempdir(), "any")
            spec = self._spec(Path(os.path.abspath(os.path.expanduser(folder))))
            if self._has_functions:
                spec = replace(spec, host_calls=_host_side().none_yet(self.options))
        return self._open_runtime().prepare(spec, timeout)

    def _prepare(self) -> None:
        """Pull or build the image; other methods go on meanwhile, which may be minutes."""
        with self._preparing:
            self._tag()

    def _spec(self, work_dir: Path) -> SessionSpec:
        return self.options.session_spec(self._tag(), work_dir)

    def _tag(self) -> str:
        """The image, which is pulled or built if it is missing."""
        return self.options.image or self._open_runtime().ensure_image(self.options.recipe)

    def find(self) -> Session | None:
        """Return the open session, or None."""
        return self._runtime.find(self.key) if self._runtime else None

    @property
    def workspace(self) -> Workspace:
        """The work_dir on the host."""
        with self._lock:
            self._leave_to_parent()
            if self._workspace is None or not self._workspace.path.is_dir():
                runtime = self._open_runtime()
                folder = self._own_folder()
                guest = runtime.guest(folder)
                path = prepare_work_dir(folder, guest)
                self._workspace = Workspace(path, guest, self.options.limits, self.options.allow_private_urls)
            return self._workspace

    def add_functions(self, functions: HostCallsLike, *, others: bool = True) -> None:
        """Add host functions that user code can call, from now on; without `others`, replace all by them."""
        with self._lock:
            self.options, further, source = _host_side().added(self.options, functions, others=others)
            session = self.find()
        if session:
            session.add_functions(further, source, others=others)

    def close(self) -> None:
        """Remove the container, and the folder if the caller did not choose it."""
        with self._lock:
            if self._workspace and self.options.work_dir is None:  # the folder is removed, too
                self._workspace.settle()
            finalizer, self._finalizer = self._finalizer, None
            self._workspace, self._folder = None, self.options.work_dir  # a use in the meantime makes a new folder
        if finalizer:
            finalizer()

    def _own_folder(self) -> Path:
        """The configured folder, or a fresh one that is removed with the session."""
        if self.options.work_dir is None and (self._folder is None or not self._folder.is_dir()):
            with start_errors():
                self._folder = make_temp_work_dir()
            self._finalize_with(self._folder)
        assert self._folder is not None
        return self._folder

    def _finalize_with(self, folder: Path | None) -> None:
        if self._finalizer is None:
            self._pid = os.getpid()
            self._finalizer = weakref.finalize(self, _end, self._open_runtime(), self.key, folder, self._pid)

    def _leave_to_parent(self) -> None:
        """In a forked child: start without a session, since the open one belongs to the parent."""
        if self._finalizer is not None and self._pid != os.getpid():
            self._finalizer, self._workspace, self._folder = None, None, self.options.work_dir

    @property
    def _has_functions(self) -> bool:
        """True if it has host functions, or may get some later; they need the extra `code-mode`."""
        return bool(self.options.hostcalls) or (self._takes_functions and _has_code_mode())

    def _open_runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = shared_runtime(self.options.engine)
        return self._runtime


def _has_code_mode() -> bool:
    return importlib.util.find_spec("pydantic") is not None


def _host_side() -> type[HostSide]:
    from agent_tools.sandbox.host_side import HostSide  # which loads pydantic and asyncio

    return HostSide


def _end(runtime: Runtime, key: str, folder: Path | None, pid: int) -> None:
    """Close a session and remove its own folder; do nothing in a forked child, whose parent owns both."""
    if pid != os.getpid():
        return
    session = runtime.find(key)
    if session and event_loop.is_here():  # its last reference may end in any thread, and closing waits for the loop
        session.behind(partial(_close, runtime, key, folder))
    else:
        _close(runtime, key, folder)


def _close(runtime: Runtime, key: str, folder: Path | None) -> None:
    try:
        runtime.close(key)
    finally:
        if folder is not None:
            remove_tree(folder)
