"""Engines that do not work."""

from __future__ import annotations

from pathlib import Path

from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.errors import EngineUnavailable
from tests.doubles import ProcessEngine


class DeadEngine(ProcessEngine):
    """An engine that starts nothing."""

    def start(self, spec: SandboxSpec) -> EngineContainer:
        raise EngineUnavailable("No engine answers.")


class SilentEngine(ProcessEngine):
    """An engine that answers nothing at all."""

    def guest(self, work_dir: Path | None = None) -> Guest:
        raise EngineUnavailable("No engine answers.")
