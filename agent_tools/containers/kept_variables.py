"""Saved variables of containers without a sandbox, as archives that are read only in a sandbox.

Variables are `parked` when the container's sandbox is closed: they are as the last call left them. They are `saved`
while the sandbox runs, every `save_every` seconds: they may be older than the last call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Literal

from agent_tools.containers.config import ContainersConfig
from agent_tools.errors import AgentToolsError
from agent_tools.results.variables import VariablesReport
from agent_tools.text import neutralise
from agent_tools.tools.tool_sandbox import ToolSandbox

Kind = Literal["parked", "saved"]
MAX_NAMED = 20  # missing variables that the note for the model names
_NOTE = (
    "note:\n\nThe sandbox was replaced since the last call: {variables}, programs in the background have ended, "
    "files are kept.{missing}\n\n"
)
PARKED = _NOTE.format(variables="variables are lost", missing="")
_log = logging.getLogger(__name__)


class KeptVariables:
    """Saves, loads and removes the variables. Thread-safe if each container is used by one thread at a time."""

    def __init__(self, config: ContainersConfig) -> None:
        self._folder = config.data_dir / "variables"
        self._config = config

    def keep(self, id_: str, sandbox: ToolSandbox, kind: Kind) -> bool:
        """Save the variables of a container that has a sandbox; return whether they could be saved."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = self._unfinished(id_, kind)
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                sandbox.save_to(file, files=False)
            unfinished.replace(self._path(id_, kind))
        except (AgentToolsError, OSError) as exc:
            _log.warning("the variables of a container were not saved: %s", type(exc).__name__)
            unfinished.unlink(missing_ok=True)
            return False
        if kind == "parked":
            self._path(id_, "saved").unlink(missing_ok=True)
        return True

    def bring_back(self, id_: str, sandbox: ToolSandbox) -> str:
        """Load the saved variables of a container into its new sandbox; return a note for the model."""
        for kind in ("parked", "saved"):
            path = self._path(id_, kind)
            if path.exists():
                return self._loaded(id_, sandbox, path, kind)
        return PARKED

    def size(self, id_: str) -> int:
        """Return the bytes of a container's saved variables."""
        total = 0
        for path in self._files(id_):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def remove(self, id_: str) -> None:
        """Delete the saved variables of a container."""
        for path in self._files(id_):
            path.unlink(missing_ok=True)

    def _loaded(self, id_: str, sandbox: ToolSandbox, path: Path, kind: Kind) -> str:
        try:
            age = time.time() - path.stat().st_mtime
            sandbox.run_code("")  # this first copies the files to a sandbox on another machine
            with open(path, "rb") as file:
                report = sandbox.load(file)
        except (AgentToolsError, OSError) as exc:
            _log.warning("the variables of a container were not loaded: %s", type(exc).__name__)
            with contextlib.suppress(OSError):  # they are not the latest any more
                path.replace(self._path(id_, "saved"))
            return PARKED
        with contextlib.suppress(OSError):
            if self._config.save_every:
                path.replace(self._path(id_, "saved"))
            else:
                path.unlink()
        if report.problem:
            return PARKED
        how = "kept" if kind == "parked" else f"as they were {_ago(age)} ago"
        return _NOTE.format(variables=f"variables are {how}", missing=_missing(report))

    def _files(self, id_: str) -> list[Path]:
        """Return all files of a container: unfinished ones first, so that none is renamed after a removal."""
        kinds: tuple[Kind, ...] = "parked", "saved"
        return [name(id_, kind) for name in (self._unfinished, self._path) for kind in kinds]

    def _unfinished(self, id_: str, kind: Kind) -> Path:
        return self._folder / f"{id_}.{kind}.part"  # a killed process leaves it

    def _path(self, id_: str, kind: Kind) -> Path:
        return self._folder / f"{id_}.{kind}"


def _ago(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def _missing(report: VariablesReport) -> str:
    """Return a sentence on the variables that are lost nevertheless."""
    if not report.missing:
        return ""
    named = [f"{each.name} ({each.reason})" for each in report.missing[:MAX_NAMED]]
    if len(report.missing) > MAX_NAMED:
        named.append(f"{len(report.missing) - MAX_NAMED:,} more")
    return neutralise(f" These variables are lost, define them again if you need them: {'; '.join(named)}.")
