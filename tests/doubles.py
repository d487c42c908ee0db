"""Real doubles for the tests: an engine that runs the guest as a plain process. It isolates nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.runtime.transport.socket_stdio import SocketStdio
from tests.nursery import Newborn, nursery


class ProcessEngine:
    """Implements the Engine protocol with processes of this Python, forks of the nursery's.

    With `shares_files=False` it behaves like an engine on another machine: the guest has a folder of its own.
    """

    def __init__(self, *, shares_files: bool = True) -> None:
        self.shares_files = shares_files
        self.folders: dict[str, Path] = {}
        self.processes: dict[str, Newborn | subprocess.Popen[bytes]] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self._temporary: dict[str, list[Path]] = {}
        self._mounts: dict[str, int] = {}

    def guest(self, work_dir: Path | None = None) -> Guest:
        me = (os.getuid(), os.getgid())
        return Guest(container_ids=me, host_ids=me, shares_sockets=self.shares_files, shares_files=self.shares_files)

    def start(self, spec: SandboxSpec) -> EngineContainer:
        home = spec.run_dir or Path(tempfile.mkdtemp(prefix="agent-tools-home-"))
        work_dir = spec.work_dir or Path(tempfile.mkdtemp(prefix="agent-tools-guest-"))
        mount = os.open(work_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        seen = f"/proc/{os.getpid()}/fd/{mount}" if work_dir.name.startswith(".") else work_dir  # it will be renamed
        ours, theirs = socket.socketpair()
        with theirs:
            over_stdio = spec.run_dir is None
            process = nursery().fork(
                ["stdio"] if over_stdio else [],
                {
                    "PATH": os.environ["PATH"],
                    "HOME": str(home),
                    "IPYTHONDIR": f"{home}/ipython",
                    "AGENT_TOOLS_RUN_DIR": str(spec.run_dir),
                    "AGENT_TOOLS_WORK_DIR": str(seen),
                    **spec.isolation.env,
                },
                theirs if over_stdio else None,
            )
        sandbox = EngineContainer(str(process.pid), SocketStdio(ours) if over_stdio else None, process.pid)
        if not over_stdio:
            ours.close()
        self.processes[sandbox.id] = process
        self.labels[sandbox.id] = spec.labels
        self.folders[sandbox.id] = work_dir
        self._mounts[sandbox.id] = mount
        self._temporary[sandbox.id] = [home] * over_stdio + [work_dir] * (spec.work_dir is None)
        return sandbox

    def remove(self, sandbox: EngineContainer) -> None:
        process = self.processes.pop(sandbox.id, None)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)  # it tells of no child's end: an engine ends PID 1 first
        for pid in (*_children(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)
        if (mount := self._mounts.pop(sandbox.id, None)) is not None:
            os.close(mount)
        for folder in self._temporary.pop(sandbox.id, []):
            shutil.rmtree(folder, ignore_errors=True)

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        process = self.processes.get(sandbox.id)
        return None if process and process.poll() is None else "it ended"

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        return [(EngineContainer(id_), labels) for id_, labels in self.labels.items() if host.items() <= labels.items()]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]
    return []
