"""The key of a pool: all options of a sandbox that are fixed when it is made. It serves any session of equal key."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.volumes import Volume
from agent_tools.limits import Limits
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.transport.transport import TransportName
from agent_tools.skills.skill import Skill

PRELOAD = "AGENT_TOOLS_PRELOAD"  # only guest/preload.py reads it
_OF_THE_FOLDER = ("max_work_dir_bytes", "max_work_dir_entries", "min_disk_free")  # enforced by the host
_OF_EACH_USE = ("max_variables_bytes",)  # sent to the sandbox with the order


@dataclass(frozen=True)
class PoolKey:
    """Sandboxes of equal keys are identical for user code. `folder` is the parent of the work_dirs."""

    image: str
    isolation: Isolation
    limits: Limits
    transport: TransportName
    checkpoint: bool
    preload: tuple[str, ...]
    folder: Path
    skills: tuple[Skill, ...] = ()
    volumes: tuple[Volume, ...] = ()

    @classmethod
    def of(cls, spec: SessionSpec, guest: Guest) -> PoolKey:
        """Return the key of the pool that can serve a session.

        It leaves out limits that the host enforces or sends with an order, and the location of a copied work_dir.
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
            skills=spec.skills,
            volumes=spec.volumes,
        )

    def spec(self, work_dir: Path) -> SessionSpec:
        """Return the specification of a sandbox of this pool that no session has yet."""
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
            skills=self.skills,
            volumes=self.volumes,
        )
