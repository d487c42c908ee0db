"""Real doubles for the tests: an engine that runs the guest as a plain process. It isolates nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from agent_tools.runtime.engine import Guest, Sandbox, SandboxSpec


class ProcessEngine:
    """Implements the Engine protocol with subprocesses of this Python."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.labels: dict[str, Mapping[str, str]] = {}

    def guest(self) -> Guest:
        me = (os.getuid(), os.getgid())
        return Guest(inside=me, outside=me)

    def start(self, spec: SandboxSpec) -> Sandbox:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(spec.run_dir),
            "IPYTHONDIR": f"{spec.run_dir}/ipython",
            "AGENT_TOOLS_RUN_DIR": str(spec.run_dir),
            "AGENT_TOOLS_WORK_DIR": str(spec.work_dir),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent_tools.guest.init"]
            if sys.version_info >= (3, 11)
            else [sys.executable, "-m", "agent_tools.guest.init"],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        sandbox = Sandbox(str(process.pid))
        self.processes[sandbox.id] = process
        self.labels[sandbox.id] = spec.labels
        return sandbox

    def remove(self, sandbox: Sandbox) -> None:
        process = self.processes.pop(sandbox.id, None)
        if process is None:
            return
        for pid in (*_children(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)

    def last_words(self, sandbox: Sandbox, spec: SandboxSpec) -> str | None:
        process = self.processes.get(sandbox.id)
        return None if process and process.poll() is None else "it ended"

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[Sandbox, Mapping[str, str]]]:
        return [(Sandbox(id_), labels) for id_, labels in self.labels.items() if host.items() <= labels.items()]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]
    return []
