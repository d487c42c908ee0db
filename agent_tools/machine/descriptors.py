"""Raises the limit on open descriptors of this process, which many sandboxes need.

A sandbox holds three to seven descriptors here, and many systems begin a process with a soft limit of 1,024, for the
sake of programs that use select(2): this one does not. What this process starts inherits the limit.
"""

from __future__ import annotations

import contextlib
import resource

MOST_DESCRIPTORS = 65_536  # the most to ask for: enough for some 8,000 sandboxes


def raise_limit() -> None:
    """Raise the soft limit to the hard one, but not beyond MOST_DESCRIPTORS; a higher one stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # raising may be forbidden: then fewer sandboxes fit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
