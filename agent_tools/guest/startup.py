"""The kernel process: a fork of PID 1, where its shell was made; nothing heavy imported, one thread beside the code."""

import os
import shutil
import socket
import sys

from ipykernel.compiler import XCachingCompiler
from traitlets.config import Config

from . import packages
from .checkpoints.frozen import Woken
from .checkpoints.taking import Checkpoints
from .kernel import SandboxKernel
from .outlet import Outlet
from .sandbox_module import install
from .session import WireSession
from .shell import SandboxShell, prepare_shell
from .streams import Stream
from .watcher import Watcher

BAKED_FONT_CACHE = "/opt/matplotlib/cache"


def prepare(work_dir: str) -> None:
    """In PID 1: make all of a kernel that holds no socket, no thread and no event loop."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    _seed_font_cache()
    os.chdir(work_dir)  # which the shell notes as the first folder of `%dhist`
    shell = SandboxShell.instance(config=_config(), user_ns={}, compiler_class=XCachingCompiler)
    os.chdir("/")
    shell.run_cell("None", silent=True)  # makes what a first cell would make
    shell.magics_manager.register_lazy("store", "IPython.extensions.storemagic", "line")
    prepare_shell(shell)


def run_kernel(descriptors: list[int], work_dir: str) -> None:
    """Be an IPython kernel until the host hangs up.

    Descriptors: the sockets for messages, for host calls, and for words to PID 1.
    """
    os.chdir(work_dir)
    packages.add()
    messages, calls, keeper = descriptors
    connected = socket.socket(fileno=os.dup(messages))
    outlet = Outlet(connected)
    kernel, streams = _make_kernel(outlet)
    sys.path.append(work_dir)  # last: a file there can be imported but shadows nothing
    host = install(calls, kernel.shell.user_ns)
    kernel.shell.is_held = host.is_held
    checkpoints = Checkpoints(outlet)
    checkpoints.connect(keeper)
    kernel.loop.was_used = False
    news: dict[str, object] = {}
    while True:
        try:
            kernel.serve(connected, checkpoints, **news)
        except Woken as woken:
            messages, calls, keeper = woken.descriptors
            news = {"run": checkpoints.run, "skipped": woken.skipped}
        else:
            return
        connected = socket.socket(fileno=messages)
        outlet.renew(connected)
        kernel.session.printed.renew(outlet.lock)
        for stream in streams:
            stream.renew()
        Watcher(outlet, kernel.session.printed, streams)
        kernel.renew()
        host.renew(calls)
        checkpoints.connect(keeper)


def _make_kernel(outlet: Outlet) -> tuple[SandboxKernel, list[Stream]]:
    """Make the kernel around the shell that is there, with stdout and stderr as its streams."""
    shell = SandboxShell.instance()
    session = WireSession(outlet)
    _silence_stdin()
    streams = [Stream(name, number, session.printed) for name, number in (("stdout", 1), ("stderr", 2))]
    sys.stdout, sys.stderr = streams
    os.register_at_fork(after_in_child=session.printed.become_fork)
    Watcher(outlet, session.printed, streams)
    kernel: SandboxKernel = SandboxKernel.instance(config=shell.config, session=session, user_ns=shell.user_ns)
    shell.kernel = shell.parent = kernel
    return kernel, streams


def _config() -> Config:
    config = Config()
    config.InteractiveShell.update(colors="nocolor", xmode="Context", display_page=True)
    config.SandboxKernel._execute_sleep = 0.0  # messages are in order, so the reply need not wait for the streams
    config.HistoryManager.enabled = False
    return config


def _seed_font_cache() -> None:
    """Copy the image's font list to where matplotlib keeps its own, so that the first plot need not look for fonts."""
    target = os.environ.get("MPLCONFIGDIR")
    if target and os.path.isdir(BAKED_FONT_CACHE) and not os.path.exists(target):
        shutil.copytree(BAKED_FONT_CACHE, target)


def _silence_stdin() -> None:
    """Point fd 0 at /dev/null: whoever reads finds an end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
