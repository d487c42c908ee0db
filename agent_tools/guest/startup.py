"""The kernel process: ipykernel, started in milliseconds, with nothing heavy imported and no thread too many."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from traitlets import Type
from traitlets.config import Config

from . import streams
from .bounds import BoundedSession
from .shell import SandboxShell, prepare_shell

BAKED_FONT_CACHE = "/opt/matplotlib/cache"


def run_kernel(connection_file: str, work_dir: str, ready: Callable[[], None]) -> None:
    """Run an IPython kernel in this process until it is told to stop; `ready` is called once its sockets are bound."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    os.chdir(work_dir)
    _seed_font_cache()
    _silence_inherited_streams()
    app = KernelApp(config=_config(), connection_file=connection_file)
    app.session = BoundedSession(parent=app)
    app.initialize([])
    sys.path.append(work_dir)  # last: a file there can be imported but shadows nothing
    prepare_shell(app.shell)
    ready()
    app.start()


def _config() -> Config:
    config = Config()
    config.IPKernelApp.update(kernel_class=SandboxKernel, outstream_class=f"{streams.__name__}.Stream", log_level=50)
    config.InteractiveShell.update(colors="nocolor", xmode="Context")
    config.SandboxKernel._execute_sleep = 0.0  # the reply need not wait for the streams: the host waits for both
    config.HistoryManager.enabled = False
    config.InteractiveShellApp.update(ignore_cwd=True, exec_PYTHONSTARTUP=False)
    return config


def _seed_font_cache() -> None:
    """Copy the image's font list to where matplotlib keeps its own, so that the first plot need not look for fonts."""
    target = os.environ.get("MPLCONFIGDIR")
    if target and os.path.isdir(BAKED_FONT_CACHE) and not os.path.exists(target):
        shutil.copytree(BAKED_FONT_CACHE, target)


def _silence_inherited_streams() -> None:
    """Point fd 0, 1 and 2 at /dev/null: raw writes reach the stream messages and not also the container's log."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


class SandboxKernel(IPythonKernel):
    """IPython's kernel; nobody is there to answer `input()`, and an interrupt wakes a cell that only awaits."""

    shell_class = Type(SandboxShell)

    def raw_input(self, prompt: str = "") -> str:
        """Refuse at once, where the stock kernel would ask a front end."""
        raise NotImplementedError("Python input() function is disabled.")

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        """Refuse at once."""
        raise NotImplementedError("Python getpass() function is disabled.")

    @property
    def _supports_kernel_subshells(self) -> bool:
        return False

    def start(self) -> None:
        """Start serving, with signals that wake an idle event loop: a stock kernel awaits on through SIGINT."""
        super().start()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        loop = self.io_loop.asyncio_loop
        loop.add_reader(reader, lambda: os.read(reader, 4096))
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


class NoShellThread:
    """Stands for the thread that would feed subshells: there is none, so a request takes one hop less."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class KernelApp(IPKernelApp):
    """The kernel application without subshells and without its heartbeat: PID 1 tells the host when a kernel ends."""

    def init_control(self, context: Any) -> None:
        """Set the control channel up, and no thread between the shell channel and the code."""
        super().init_control(context)
        self.shell_channel_thread = NoShellThread()

    def init_iopub(self, context: Any) -> None:
        """Set iopub up so that a full pipe makes the code wait and nothing is lost."""
        context.setsockopt(zmq.XPUB_NODROP, 1)  # for new sockets: the thread that owns iopub starts at once
        super().init_iopub(context)

    def init_heartbeat(self) -> None:
        """Start no heartbeat thread."""

    def init_pdb(self) -> None:
        """Leave pdb alone: there is no terminal."""
