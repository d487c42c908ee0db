"""A started sandbox with all it holds on the host: private directory, lifeline, kernel."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agent_tools.errors import EngineError, KernelDied, ProtocolViolation, SandboxStartError
from agent_tools.runtime.channels import Channels
from agent_tools.runtime.connection import RunDir
from agent_tools.runtime.engine import Engine, Isolation, SandboxSpec
from agent_tools.runtime.kernel import Kernel, refuse_end
from agent_tools.runtime.link import Link
from agent_tools.runtime.owner import Owner
from agent_tools.runtime.zmtp import ZmtpSocket
from agent_tools.settings import Limits


@dataclass(frozen=True)
class SessionSpec:
    """What a session is made of. `work_dir` exists and is the guest's to write."""

    image: str
    work_dir: Path
    isolation: Isolation
    limits: Limits


class LiveSandbox:
    """Starts with its first kernel ready, or not at all; `close` releases everything."""

    def __init__(self, engine: Engine, spec: SessionSpec) -> None:
        self._engine = engine
        self._spec = spec
        self._generation = 0
        self._is_removed = False
        self.kernel: Kernel | None = None
        with ExitStack() as undo:
            self._run_dir = RunDir()
            undo.callback(self._run_dir.remove)
            self._work_dir = _identity(spec.work_dir)
            self._link = Link(self._run_dir.init_socket)
            undo.callback(self._link.close)
            asked = SandboxSpec(
                image=spec.image,
                run_dir=self._run_dir.mounted,
                work_dir=spec.work_dir,
                guest=engine.guest(),
                isolation=spec.isolation,
                labels=Owner.current().labels,
            )
            self.sandbox = engine.start(asked)
            undo.callback(self.remove)
            self._await_guest(asked)
            self.start_kernel(spec.limits.start_timeout)
            self._undo = undo.pop_all()

    @property
    def has_ended(self) -> bool:
        """Whether the sandbox is gone, or was found not to answer."""
        return self._link.is_closed_by_guest or bool(self.kernel and self.kernel.sandbox_ended)

    @property
    def has_work_dir(self) -> bool:
        """Whether work_dir is still the folder that was mounted, and not another one under its name."""
        return _identity(self._spec.work_dir) == self._work_dir

    def start_kernel(self, patience: float) -> Kernel:
        """Have PID 1 fork a fresh kernel and connect to it, in at most `patience` seconds.

        Raises:
            KernelDied: it did not come up.
        """
        if self.kernel:
            self.kernel.close()
            self.kernel = None
        self._generation += 1
        deadline = time.monotonic() + patience
        key = secrets.token_hex(32)
        limit = self._spec.limits.max_message_bytes
        with ExitStack() as undo:
            listeners: list[socket.socket] = []
            channels: list[ZmtpSocket] = []
            for name in ("shell", "iopub"):
                connected, listener = self._run_dir.new_channel(name)
                listeners.append(undo.enter_context(listener))
                channels.append(ZmtpSocket(connected, "DEALER" if name == "shell" else "SUB", limit))
                undo.callback(channels[-1].close)
            descriptors = [listener.fileno() for listener in listeners]
            if not self._link.send(f"start {self._generation} {key}", descriptors):
                raise KernelDied("the sandbox takes no orders")
            self.kernel = self._connect(key.encode(), channels, deadline)
            for listener in listeners:
                listener.close()
            undo.pop_all()
        return self.kernel

    def _connect(self, key: bytes, channels: list[ZmtpSocket], deadline: float) -> Kernel:
        """Wait for the kernel's side of both channels."""
        shell, iopub = channels
        for channel in channels:
            while not select.select([channel.fileno(), self._link.fileno()], [], [], 0.5)[0] or self._hear():
                if time.monotonic() > deadline:
                    raise KernelDied("it did not become ready in time")
            try:
                channel.handshake(deadline)
            except (ProtocolViolation, OSError) as exc:
                raise KernelDied(f"it did not become ready ({exc})") from exc
        ready = Channels(key, shell, iopub, self._link)
        ready.await_welcome(deadline)
        return Kernel(ready, self._link, self._spec.limits, self._spec.isolation.memory)

    def _hear(self) -> bool:
        """Take in what PID 1 says while a kernel starts; whether it said anything."""
        words = self._link.receive()
        if words is not None:
            refuse_end(words, self._generation)
        return words is not None

    def remove(self) -> None:
        """End the sandbox at once; safe while another thread still reads from it.

        An engine that fails leaves the sandbox to end with its lifeline.
        """
        if not self._is_removed:
            self._is_removed = True
            with contextlib.suppress(EngineError):
                self._engine.remove(self.sandbox)

    def close(self) -> None:
        """Release everything, in reverse order."""
        if self.kernel:
            self.kernel.close()
        self._undo.close()

    def _await_guest(self, asked: SandboxSpec) -> None:
        deadline = time.monotonic() + self._spec.limits.start_timeout
        words = "it did not connect in time"

        def still_runs() -> bool:
            nonlocal words
            output = self._engine.last_words(self.sandbox, asked)
            words = output if output is not None else words
            return output is None

        if not self._link.accept(deadline, still_runs):
            raise SandboxStartError(f"The sandbox of image {self._spec.image} did not come up: {words.strip()}", words)


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
