"""The kernel process: a fork of PID 1, where its shell was made; nothing heavy imported, one thread beside the code."""

import os
import shutil
import socket
import sys

from ipykernel.compiler import XCachingCompiler
from traitlets.config import Config

from . import packages
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
    """Be an IPython kernel until the host hangs up. Descriptors: the socket for messages, the one for host calls."""
    os.chdir(work_dir)
    packages.add()
    connected = socket.socket(fileno=os.dup(descriptors[0]))
    kernel = _make_kernel(Outlet(connected))
    sys.path.append(work_dir)  # last: a file there can be imported but shadows nothing
    kernel.shell.is_held = install(descriptors[1], kernel.shell.user_ns).is_held
    kernel.serve(connected)


def _make_kernel(outlet: Outlet) -> SandboxKernel:
    """Make the kernel around the shell that is there, with stdout and stderr as its streams."""
    shell = SandboxShell.instance()
    session = WireSession(outlet)
    _silence_stdin()
    sys.stdout, sys.stderr = (Stream(name, number, session.printed) for name, number in (("stdout", 1), ("stderr", 2)))
    os.register_at_fork(after_in_child=session.printed.become_fork)
    Watcher(outlet, session.printed, [sys.stdout, sys.stderr])
    kernel: SandboxKernel = SandboxKernel.instance(config=shell.config, session=session, user_ns=shell.user_ns)
    shell.kernel = shell.parent = kernel
    return kernel


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
