"""The kernel process: started in milliseconds, with nothing heavy imported and one thread beside the code."""

import os
import shutil
import socket
import sys

from traitlets.config import Config

from . import packages
from .kernel import SandboxKernel
from .outlet import Outlet
from .sandbox_module import install
from .session import WireSession
from .shell import prepare_shell
from .streams import Stream
from .watcher import Watcher

BAKED_FONT_CACHE = "/opt/matplotlib/cache"


def run_kernel(descriptors: list[int], work_dir: str) -> None:
    """Be an IPython kernel until the host hangs up. Descriptors: the socket for messages, the one for host calls."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    os.chdir(work_dir)
    packages.add()
    _seed_font_cache()
    connected = socket.socket(fileno=os.dup(descriptors[0]))
    kernel = _make_kernel(Outlet(connected))
    sys.path.append(work_dir)  # last: a file there can be imported but shadows nothing
    host = install(descriptors[1], kernel.shell.user_ns)
    prepare_shell(kernel.shell, host.is_held)
    kernel.serve(connected)


def _make_kernel(outlet: Outlet) -> SandboxKernel:
    """Make the kernel, with stdout and stderr as its streams."""
    session = WireSession(outlet)
    _silence_stdin()
    sys.stdout, sys.stderr = (Stream(name, number, session.printed) for name, number in (("stdout", 1), ("stderr", 2)))
    os.register_at_fork(after_in_child=session.printed.become_fork)
    Watcher(outlet, session.printed, [sys.stdout, sys.stderr])
    kernel: SandboxKernel = SandboxKernel.instance(config=_config(), session=session)
    kernel.shell.extension_manager.load_extension("storemagic")
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
