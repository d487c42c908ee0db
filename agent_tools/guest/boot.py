"""The boot of PID 1: imports what a kernel needs and makes its shell, so that a kernel is a fork of what is ready."""

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import bundle, standins

if TYPE_CHECKING:
    from .startup import Supervise


def boot(work_dir: str) -> "Callable[[Supervise, list[int], str], None]":
    """Return what makes a forked process a kernel."""
    gc.disable()  # what is imported stays
    with standins.standing():
        from . import startup

        startup.prepare(work_dir)
    bundle.uninstall()
    gc.freeze()  # keeps the forks' pages shared
    gc.enable()
    return startup.run_kernel
