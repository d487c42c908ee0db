"""The user of the processes in a sandbox."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Guest:
    """The user of the guest's processes: its uid and gid in the container, and on the host, where they own its files.

    Attributes:
        shares_sockets: True if a unix socket of the host can be mounted and connected to (not from a VM).
        shares_files: True if folders of the host can be mounted (not by an engine on another machine).
        runtimes: the OCI runtimes of the engine, its default first; () where it names none.
    """

    container_ids: tuple[int, int]
    host_ids: tuple[int, int]
    shares_sockets: bool = True
    shares_files: bool = True
    runtimes: tuple[str, ...] = ()

    @classmethod
    def own(cls, *, shares: bool = True) -> Guest:
        """Return this process's own user, for files on the host that no guest owns."""
        me = (os.getuid(), os.getgid())
        return cls(me, me, shares, shares)
