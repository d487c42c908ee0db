"""The kind of a sandbox: all that is settled when it is made. It can serve any session that asks for the same."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from agent_tools.limits import Limits
from agent_tools.runtime.engine import Guest, Isolation
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.transport.transport import TransportName

PRELOAD = "AGENT_TOOLS_PRELOAD"  # guest/preload.py reads it, and nobody after that
_OF_THE_FOLDER = ("max_work_dir_bytes", "max_work_dir_entries", "min_disk_free")  # watched from the host
_OF_EACH_USE = ("max_variables_bytes",)  # told to the sandbox when it matters


@dataclass(frozen=True)
class Kind:
    """Equal kinds are the same sandbox to any code. `folder` is where the work_dirs lie, and so the blank ones."""

    image: str
    isolation: Isolation
    limits: Limits
    transport: TransportName
    checkpoint: bool
    preload: tuple[str, ...]
    folder: Path

    @classmethod
    def of(cls, spec: SessionSpec, guest: Guest) -> Kind:
        """The kind that a session needs.

        Limits do not count of a work_dir that is watched from here, or that come with an order; nor does where one lies
        that is copied.
        """
        shares, usual = guest.shares_files, Limits()
        free = {name: getattr(usual, name) for name in (*_OF_EACH_USE, *(_OF_THE_FOLDER if shares else ()))}
        return cls(
            image=spec.image,
            isolation=spec.telling_isolation,
            limits=replace(spec.limits, **free),
            transport=spec.transport,
            checkpoint=spec.checkpoint,
            preload=spec.ahead.preload,
            folder=spec.work_dir.parent if shares else Path(tempfile.gettempdir()),
        )

    def spec(self, work_dir: Path) -> SessionSpec:
        """Return the makings of a sandbox of this kind that is nobody's yet."""
        told = {PRELOAD: ",".join(self.preload)} if self.preload else {}
        isolation = replace(self.isolation, env={**self.isolation.env, **told})
        return SessionSpec(
            self.image,
            work_dir,
            isolation,
            self.limits,
            self.transport,
            checkpoint=self.checkpoint,
            is_blank=True,
        )
