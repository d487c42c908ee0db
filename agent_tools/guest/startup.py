"""The kernel process: a fork of PID 1, which has made its shell; no heavy imports, one thread beside the code."""

import os
import shutil
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from traitlets.config import Config

from . import packages
from .checkpoints.frozen import Branched, Woken, own_files
from .checkpoints.taking import Checkpoints
from .forks import silence
from .kernel.cells import CellCompiler
from .kernel.finish import leave_to_finish
from .kernel.kernel import SandboxKernel
from .kernel.message_writer import MessageWriter
from .kernel.session import WireSession
from .kernel.shell import SandboxShell, prepare_shell
from .kernel.streams import OutputStream
from .kernel.watcher import Watcher
from .sandbox_module import install
from .work_dir_names import rename_across_names

BAKED_FONT_CACHE = "/opt/matplotlib/cache"
DATASETS = "/opt/datasets"
Supervise = Callable[[list[int], Callable[[list[int]], None]], NoReturn]
"""Is the supervisor of a branch, on these descriptors; forks of it go on as the kernel, on the descriptors given."""


def prepare(work_dir: str) -> None:
    """In PID 1: make all parts of a kernel that need no socket, thread or event loop."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    _seed_caches()
    rename_across_names(work_dir)
    os.chdir(work_dir)  # which the shell notes as the first folder of `%dhist`
    shell = SandboxShell.instance(config=_config(), user_ns={}, compiler_class=CellCompiler)
    os.chdir("/")
    shell.run_cell("None", silent=True).raise_error()  # makes what a first cell would make
    shell.magics_manager.register_lazy("store", "IPython.extensions.storemagic", "line")
    prepare_shell(shell)
    leave_to_finish(shell)


def run_kernel(supervise: Supervise, descriptors: list[int], work_dir: str) -> None:
    """Run an IPython kernel until the host closes the connection.

    Descriptors: the sockets for messages, for host calls, and for words to PID 1; the pipes of stdout and stderr, each
    to read and to write. A copy of the kernel that is to be the supervisor of a branch does `supervise`.
    """
    os.chdir(work_dir)
    packages.add()
    _Process(descriptors, work_dir, supervise).serve()


class _Process:
    """The kernel with all that it works with, in the process that it was started in or in one forked from it."""

    def __init__(self, descriptors: list[int], work_dir: str, supervise: Supervise) -> None:
        messages, calls, keeper, *pipes = descriptors
        self._supervise = supervise
        self._connected = socket.socket(fileno=os.dup(messages))
        self._writer = MessageWriter(self._connected)
        self._kernel, self._streams = _make_kernel(self._writer, pipes)
        self._watcher = Watcher(self._writer, self._kernel.session.printed, self._streams)
        sys.path.append("")  # the working directory, last: a file there can be imported but shadows nothing
        self._host = install(calls, self._kernel.shell.user_ns)
        self._kernel.shell.is_held = self._host.is_held
        self._checkpoints = Checkpoints(self._writer)
        self._checkpoints.connect(keeper)
        self._kernel.loop.was_used = False

    def serve(self) -> None:
        """Answer requests until the host hangs up, here and, where a copy goes on, in that."""
        news: dict[str, object] = {}
        while True:
            try:
                self._kernel.serve(self._connected, self._checkpoints, **news)
            except Woken as raised:
                woken = raised
            else:
                return
            if isinstance(woken, Branched):
                self._supervise(woken.descriptors, self._go_on)
            self._renew(woken.descriptors)
            news = {"run": self._checkpoints.run, "skipped": woken.skipped}

    def _go_on(self, descriptors: list[int]) -> None:
        """Be the kernel of a branch, in a fork of its supervisor."""
        own_files()
        self._renew(descriptors)
        self.serve()

    def _renew(self, descriptors: list[int]) -> None:
        """Be ready to serve over other sockets, in a fork."""
        messages, calls, keeper, *pipes = descriptors
        self._connected = socket.socket(fileno=messages)
        self._writer.renew(self._connected)
        self._kernel.session.printed.renew(self._writer.lock)
        for number, stream in enumerate(self._streams):
            stream.renew(pipes[2 * number], pipes[2 * number + 1])
        self._watcher.let_go()
        self._watcher = Watcher(self._writer, self._kernel.session.printed, self._streams)
        self._kernel.renew()
        self._host.renew(calls)
        self._checkpoints.connect(keeper)
        for descriptor in (calls, keeper):  # of which copies are used
            os.close(descriptor)


def _make_kernel(writer: MessageWriter, pipes: list[int]) -> tuple[SandboxKernel, list[OutputStream]]:
    """Make the kernel around the shell that is there, with stdout and stderr as its streams."""
    shell = SandboxShell.instance()
    session = WireSession(writer)
    silence(0)
    streams = [
        OutputStream("stdout", 1, pipes[:2], session.printed),
        OutputStream("stderr", 2, pipes[2:], session.printed),
    ]
    sys.stdout, sys.stderr = streams
    vars(sys).update(__stdout__=sys.stdout, __stderr__=sys.stderr)  # which code puts back
    os.register_at_fork(after_in_child=session.printed.become_fork)
    kernel: SandboxKernel = SandboxKernel.instance(config=shell.config, session=session, user_ns=shell.user_ns)
    shell.kernel = shell.parent = kernel
    session.printed.sends_flushed = lambda: shell.depth > 0 or not session.unwatched
    session.printed.is_outermost = lambda: shell.depth == 0  # `%%capture` runs a cell within one
    shell.events.register("post_execute", session.printed.end_cell)
    return kernel, streams


def _config() -> Config:
    config = Config()
    config.InteractiveShell.update(colors="nocolor", xmode="Context", display_page=True)
    config.SandboxKernel._execute_sleep = 0.0  # messages are in order, so the reply need not wait for the streams
    config.HistoryManager.enabled = False
    return config


def _seed_caches() -> None:
    """Put the image's list of fonts where matplotlib keeps its own, and its data sets where seaborn looks first."""
    target = os.environ.get("MPLCONFIGDIR")
    if target and os.path.isdir(BAKED_FONT_CACHE) and not os.path.exists(target):
        shutil.copytree(BAKED_FONT_CACHE, target)
    if os.path.isdir(DATASETS):
        cache = os.path.expanduser("~/.cache/seaborn")
        os.makedirs(cache, exist_ok=True)
        for name in os.listdir(DATASETS):
            if not os.path.lexists(link := os.path.join(cache, name)):
                os.symlink(os.path.join(DATASETS, name), link)
