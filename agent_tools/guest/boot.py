"""The boot of PID 1: imports what a kernel needs and makes its shell, so that a kernel is a fork of what is ready."""

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import bundle, preload, standins

if TYPE_CHECKING:
    from .startup import Supervise

    RunKernel = Callable[[Supervise, list[int], str], None]


def boot(work_dir: str) -> "RunKernel":
    """Return what makes a forked process a kernel."""
    gc.disable()  # what is imported stays
    modules = preload.names()
    with standins.standing():
        from . import startup  # its imports are to meet the stand-ins

        startup.prepare(work_dir)
    bundle.uninstall()
    run_kernel = _preloaded(modules, startup.run_kernel) if modules else startup.run_kernel
    gc.freeze()  # keeps the forks' pages shared
    gc.enable()
    return run_kernel


def _preloaded(modules: list[str], run_kernel: "RunKernel") -> "RunKernel":
    """Import modules, and return what makes a kernel with them; if that fails, a kernel tells so at its start."""
    failure: Exception | None = None
    try:
        preload.preload(modules)
    except Exception as exc:  # noqa: BLE001  (whatever a module raises when it is imported)
        failure = exc

    def run(supervise: "Supervise", descriptors: list[int], work_dir: str) -> None:
        if failure:
            raise failure
        preload.renew()
        run_kernel(supervise, descriptors, work_dir)

    return run
