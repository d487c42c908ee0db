"""The sandbox's kernel, if it is gVisor's."""

import os

GVISOR = "proc/sentry-meminfo"


def is_gvisor(root: str = "/") -> bool:
    """Return whether the kernel is gVisor's."""
    return os.path.exists(f"{root}{GVISOR}")
