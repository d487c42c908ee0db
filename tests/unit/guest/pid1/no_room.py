"""A process that may start no other, as beside a command that has taken all the processes of a sandbox."""

from __future__ import annotations

import os
import resource

NOBODY = 65_534


def forbid_processes() -> None:
    """Make each later fork of this process, which has to be a fork itself, fail with EAGAIN. Root's never do."""
    if os.getuid() == 0:
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def forbid_descriptors(*, but: int = 0) -> None:
    """Make later sockets, pipes and open files of this process fail with EMFILE, as where the host's table is full."""
    with open("/dev/null") as file:
        most = file.fileno() + but
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
