"""The kernel process: ipykernel, started in milliseconds, with nothing heavy imported and no thread too many."""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq
from ipykernel.control import ControlThread
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from traitlets import Type
from traitlets.config import Config

from . import host, interrupts, streams
from .bounds import BoundedSession
from .shell import SandboxShell, is_users, prepare_shell

SHELL, IOPUB, STDIN, CONTROL = 1, 2, 3, 4  # "ports" of the kernel application
MAX_QUEUED_MESSAGES = 64  # on iopub, for a host that does not read; a text message has at most MAX_STREAM_CHARS
SETTLE_SECONDS = 0.05  # after an interrupt: a second one would cut short what the first has begun to release
BAKED_FONT_CACHE = "/opt/matplotlib/cache"


def make_kernel(key: bytes, descriptors: list[int], work_dir: str) -> IPKernelApp:
    """Make this process an IPython kernel, ready to start. Descriptors: listeners for shell and iopub; calls."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    os.chdir(work_dir)
    _seed_font_cache()
    _silence_inherited_streams()
    app = KernelApp.instance(config=_config())  # the one that ipykernel looks for
    app.session = BoundedSession(parent=app, key=key)
    app.listeners = dict(zip((SHELL, IOPUB), descriptors))
    app.initialize([])
    sys.path.append(work_dir)  # last: a file there can be imported but shadows nothing
    prepare_shell(app.shell)
    host.install(descriptors[2], app.shell.user_ns)
    return app


def _config() -> Config:
    config = Config()
    config.IPKernelApp.update(kernel_class=SandboxKernel, outstream_class=f"{streams.__name__}.Stream", log_level=50)
    config.InteractiveShell.update(colors="nocolor", xmode="Context", display_page=True)
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

    def pre_handler_hook(self) -> None:
        """Note an interrupt that comes before the code runs: raised here, it would cost the request its reply."""
        interrupts.expect()

    def post_handler_hook(self) -> None:
        """Ignore interrupts between requests."""
        interrupts.ignore()

    def raw_input(self, prompt: str = "") -> str:
        """Refuse at once, where the stock kernel would ask a front end."""
        raise NotImplementedError("Python input() function is disabled.")

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        """Refuse at once."""
        raise NotImplementedError("Python getpass() function is disabled.")

    @contextmanager
    def _cancel_on_sigint(self, future: Any) -> Iterator[None]:
        """End a cell that awaits: at once where code runs, in whatever task; the stock kernel waits until it awaits."""
        with super()._cancel_on_sigint(future):
            cancel: Any = signal.getsignal(signal.SIGINT)
            last = 0.0

            def end(number: int, frame: Any) -> None:
                nonlocal last
                before, last = last, time.monotonic()
                if last - before < SETTLE_SECONDS:
                    return
                if is_users(frame):
                    raise asyncio.CancelledError  # in a task KeyboardInterrupt would end the whole event loop
                cancel(number, frame)

            signal.signal(signal.SIGINT, end)
            yield

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
    """The kernel application with what a sandbox needs: no files, no heartbeat, no subshells, sockets that are given.

    A fresh kernel in a used sandbox reads nothing that earlier code could have written.
    """

    shell_port, iopub_port, stdin_port, control_port = SHELL, IOPUB, STDIN, CONTROL
    listeners: dict[int, int]

    def load_config_file(self, *args: Any, **kwargs: Any) -> None:
        """Read no configuration files."""

    def init_code(self) -> None:
        """Run no start-up files."""

    def init_connection_file(self) -> None:
        """Have no connection file: the key and the sockets came from the host."""

    def write_connection_file(self, **kwargs: Any) -> None:
        """Write none either."""

    def init_heartbeat(self) -> None:
        """Start no heartbeat thread: PID 1 tells the host when a kernel ends."""

    def init_pdb(self) -> None:
        """Leave pdb alone: there is no terminal."""

    def init_control(self, context: Any) -> None:
        """Set up a control channel that nobody outside can reach, and no thread between shell channel and code."""
        self.control_socket = context.socket(zmq.ROUTER)
        self.control_port = self._bind_socket(self.control_socket, CONTROL)
        self.debugpy_socket = context.socket(zmq.STREAM)
        self.debug_shell_socket = context.socket(zmq.DEALER)
        self.control_thread = ControlThread(daemon=True)
        self.shell_channel_thread = NoShellThread()

    def _bind_socket(self, socket: Any, port: int) -> int:
        if port == IOPUB:  # when it is full, the code waits, and nothing is lost
            socket.setsockopt(zmq.XPUB_NODROP, 1)
            socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_MESSAGES)
        if port in self.listeners:
            socket.setsockopt(zmq.USE_FD, os.dup(self.listeners[port]))
            socket.bind(f"ipc:///run/kernel/{port}")  # the name is only a name: libzmq listens on the descriptor
        else:
            socket.bind(f"inproc://{port}")
        return port
