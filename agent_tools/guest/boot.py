"""The boot of PID 1: imports what a kernel needs and makes its shell, so that a kernel is a fork of what is ready."""

import gc
from collections.abc import Callable

from . import bundle, preload, standins


def boot(work_dir: str) -> Callable[[list[int], str], None]:
    """Return what makes a forked process a kernel.

    Raises:
        ImportError, RuntimeError: as for `preload`.
    """
    gc.disable()  # what is imported stays
    modules = preload.names()
    with standins.standing():
        from . import startup

        startup.prepare(work_dir)
    bundle.uninstall()
    preload.preload(modules)
    gc.freeze()  # keeps the forks' pages shared
    gc.enable()

    def run_kernel(descriptors: list[int], work_dir: str) -> None:
        preload.renew()
        startup.run_kernel(descriptors, work_dir)

    return run_kernel if modules else startup.run_kernel
