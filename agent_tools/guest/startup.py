"""The kernel process: IPython as this project wants it, with nothing heavy imported and every message bounded.

What is bounded here is a courtesy to honest code (a long print is cut and not punished); the host trusts none of it.
"""

import ast
import builtins
import contextlib
import fcntl
import importlib
import os
import re
import select
import shutil
import signal
import struct
import sys
import termios
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import zmq
from ipykernel import iostream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.ultratb import AutoFormattedTB
from jupyter_client.session import Session
from traitlets import Type
from traitlets.config import Config

MAX_STREAM_CHARS = 256 * 1024  # one stream message; longer text is sent as several
MAX_MIME_CHARS = 12 * 1024 * 1024  # one MIME entry of a display; a larger picture is replaced by a note
MAX_BUFFERED_CHARS = 1024 * 1024  # printed text the kernel holds before the code has to wait for the host
MAX_TEXT_CHARS = 1024 * 1024  # text/plain of a display or result, and one traceback
BAKED_FONT_CACHE = "/opt/matplotlib/cache"
FD_DRAIN_SECONDS = 0.5  # how long the end of a cell waits for what subprocesses wrote to fd 1 and 2

# Names a cell may use without importing them; the module is imported when a cell first mentions the name.
LAZY_NAMES = {
    "json": ("json", None),
    "math": ("math", None),
    "os": ("os", None),
    "re": ("re", None),
    "signal": ("signal", None),
    "np": ("numpy", None),
    "pd": ("pandas", None),
    "matplotlib": ("matplotlib", None),
    "plt": ("matplotlib.pyplot", None),
    "sns": ("seaborn", None),
    "sympy": ("sympy", None),
    "Eq": ("sympy", "Eq"),
    "solve": ("sympy", "solve"),
    "symbols": ("sympy", "symbols"),
}


def run_kernel(connection_file: str, work_dir: str, ready: Callable[[], None]) -> None:
    """Run an IPython kernel in this process until it is told to stop; `ready` is called once its sockets are bound."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    os.chdir(work_dir)
    _seed_font_cache()
    _silence_inherited_streams()
    app = KernelApp(config=_config(), connection_file=connection_file)
    app.session = BoundedSession(parent=app)
    app.initialize([])
    app.iopub_thread.socket.setsockopt(zmq.XPUB_NODROP, 1)  # a full pipe makes the code wait; nothing is lost
    sys.path.append(work_dir)  # last: a file there can be imported but shadows nothing
    _prepare_shell(app.shell)
    ready()
    app.start()


def _config() -> Config:
    config = Config()
    config.IPKernelApp.update(kernel_class=SandboxKernel, outstream_class=f"{__name__}.Stream", log_level=50)
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


def _prepare_shell(shell: Any) -> None:
    shell.ast_transformers.append(LazyNames(shell.user_ns))
    shell.InteractiveTB = UserTraceback(mode="Context", theme_name="nocolor", tb_offset=1)
    if group := getattr(builtins, "BaseExceptionGroup", None):
        shell.set_custom_exc((group,), _format_exception_group)
    shell.user_ns["exit"] = shell.user_ns["quit"] = _leave
    shell.user_ns_hidden.update(exit=_leave, quit=_leave)
    countdown = Countdown(shell)
    shell.events.register("pre_execute", countdown.start)
    shell.events.register("post_execute", countdown.cancel)
    shell.events.register("post_execute", _drain_streams)
    warnings.filterwarnings("ignore", message="To exit: use")


def _leave(code: object = 0) -> None:
    """Stand in for `exit` and `quit`: ends the cell, keeps the kernel."""
    raise SystemExit(code)


class Countdown:
    """The time limit as seen from inside: an interval timer that interrupts the cell as Ctrl-C would.

    It is armed from the request's metadata, so the user's code gains no line. Code can disarm it; the host has its own.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def start(self) -> None:
        """Arm the timer for the request that is about to run."""
        timeout = self.shell.kernel.get_parent("shell").get("metadata", {}).get("timeout")
        if isinstance(timeout, (int, float)) and timeout > 0:
            signal.signal(signal.SIGALRM, self.expire)
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def cancel(self) -> None:
        """Disarm the timer."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    @staticmethod
    def expire(_signum: int, frame: FrameType | None) -> None:
        """Do what SIGINT would do now: KeyboardInterrupt in a plain cell, cancellation in an awaiting one."""
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)


class LazyNames(ast.NodeTransformer):
    """Imports the well-known names a cell mentions, before it runs, unless the user has defined them."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Look at the cell; change nothing."""
        self.look_at(node)
        return node

    def visit_Expression(self, node: ast.Expression) -> ast.Expression:
        """Do the same for what %time and %timeit compile."""
        self.look_at(node)
        return node

    def look_at(self, node: ast.AST) -> None:
        """Provide every name that is mentioned."""
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & LAZY_NAMES.keys():
            self.provide(name)

    def provide(self, name: str) -> None:
        """Import what `name` stands for; an image without the module leaves the name undefined."""
        if name in self.namespace or hasattr(builtins, name):
            return
        module, attribute = LAZY_NAMES[name]
        with contextlib.suppress(ImportError):
            found = importlib.import_module(module)
            self.namespace[name] = getattr(found, attribute) if attribute else found


class UserTraceback(AutoFormattedTB):
    """IPython's traceback without the frames of installed libraries, which only cost the reader time."""

    def get_records(self, etb: Any, context: int, tb_offset: int) -> Any:
        """Return the frames of the user's own code."""
        records = super().get_records(etb, context, tb_offset)
        return [record for record in records if not _is_library(str(record.filename))]


def _is_library(filename: str) -> bool:
    """Whether a frame's file is neither a cell, nor below work_dir or another place the code may write."""
    if filename.startswith("<frozen") or not filename.startswith(("/", "<")):  # relative: Cython's .pyx files
        return True
    return filename.startswith((sys.prefix, sys.base_prefix, "/usr/", os.path.dirname(__file__)))


def _format_exception_group(shell: Any, etype: Any, value: Any, tb: Any, tb_offset: int | None = None) -> list[str]:
    """Format an exception group with the standard library: IPython's own formatter does not know them."""
    while tb is not None and _is_library(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    cells = {file: f"Cell In[{number}]" for file, number in shell.compile._filename_map.items()}
    text = "".join(traceback.format_exception(etype, value, tb))
    stb = re.sub(r'File "([^"]+)"', lambda m: cells.get(m[1], m[0]), text).rstrip("\n").split("\n")
    shell._showtraceback(etype, value, stb)
    return stb


class SandboxShell(ZMQInteractiveShell):
    """IPython's shell; `exit()` reads as what it is and not as advice about the terminal."""

    def showtraceback(self, exc_tuple: Any = None, *args: Any, exception_only: bool = False, **kwargs: Any) -> None:
        """Show `SystemExit: 3` for an exit, the usual traceback for everything else."""
        etype, value, _ = self._get_exc_info(exc_tuple)
        if exception_only and issubclass(etype, SystemExit):
            self._showtraceback(etype, value, [f"SystemExit: {value}"])
        else:
            super().showtraceback(exc_tuple, *args, exception_only=exception_only, **kwargs)


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

    def init_heartbeat(self) -> None:
        """Start no heartbeat thread."""

    def init_pdb(self) -> None:
        """Leave pdb alone: there is no terminal."""


class Stream(iostream.OutStream):
    """stdout or stderr as messages, file descriptors included, with a way to know that the descriptors are drained.

    Writing and flushing cost less than in the stock class: the buffer's key is made once a cell, and a flush does not
    wait for the sending thread, which sends in order, until much is buffered; then it does, and the code waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pipe_lock = threading.Lock()
        self._keyed_parent: Any = None
        self._key: frozenset[Any] = frozenset()
        self._buffered = 0
        super().__init__(*args, **kwargs)

    def write(self, string: str) -> int | None:
        """Buffer text for the cell that is running."""
        if self.pub_thread is None or os.getpid() != self._master_pid or not isinstance(string, str):
            return super().write(string)  # type: ignore[no-any-return]
        parent = self.parent_header
        with self._buffer_lock:
            if parent is not self._keyed_parent:
                self._keyed_parent, self._key = parent, frozenset(parent.items())
            self._buffers[self._key].write(string)
            self._buffered += len(string)
        if self._buffered > MAX_BUFFERED_CHARS:
            super().flush()
        else:
            self._schedule_flush()
        return len(string)

    def flush(self) -> None:
        """Have what is buffered sent, before anything that is sent later."""
        if self._buffers and self.pub_thread is not None:
            self.pub_thread.schedule(self._flush)

    def _flush(self) -> None:
        """Send what is buffered, from the sending thread and at once: nothing sent later can overtake it."""
        self._flush_pending = self._subprocess_flush_pending = False
        for parent, text in self._flush_buffers():
            for start in range(0, len(text), MAX_STREAM_CHARS):
                self.session.pid = os.getpid()  # a forked child may send
                content = {"name": self.name, "text": text[start : start + MAX_STREAM_CHARS]}
                message = self.session.msg("stream", content, parent=parent)
                self.pub_thread._really_send(self.session.serialize(message, ident=self.topic))

    def _rotate_buffers(self) -> Any:
        self._buffered = 0
        return super()._rotate_buffers()

    def _watch_pipe_fd(self) -> None:
        fd = self._fid
        while self._should_watch:
            select.select([fd], [], [])
            with self._pipe_lock:
                data = os.read(fd, 65536)
                self.write(data.decode(errors="replace"))

    def is_drained(self) -> bool:
        """Whether everything written to the descriptor so far is in the buffer."""
        if self._fid is None:
            return True
        with self._pipe_lock:
            waiting = fcntl.ioctl(self._fid, termios.FIONREAD, b"\0\0\0\0")
        return bool(struct.unpack("i", waiting)[0] == 0)


def _drain_streams() -> None:
    deadline = time.monotonic() + FD_DRAIN_SECONDS
    for stream in (sys.stdout, sys.stderr):
        while isinstance(stream, Stream) and not stream.is_drained() and time.monotonic() < deadline:
            time.sleep(0.001)


class BoundedSession(Session):
    """Cuts what is too long before it is sent, so that honest code never meets the host's message limit."""

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a message whose displays and tracebacks are bounded."""
        if isinstance(msg_or_type, dict):
            _bound_content(msg_or_type["header"]["msg_type"], msg_or_type["content"])
        elif isinstance(content, dict):
            _bound_content(msg_or_type, content)
        return super().send(stream, msg_or_type, content, *args, **kwargs)


def _bound_content(kind: str, content: dict[str, Any]) -> None:
    if kind in {"execute_result", "display_data", "update_display_data"}:
        content["data"] = _bound_bundle(content.get("data") or {})
    elif kind in {"error", "execute_reply"} and content.get("traceback"):
        content["traceback"] = _bound_lines(content["traceback"])
        content["evalue"] = _cut(str(content.get("evalue", "")), MAX_TEXT_CHARS)


def _bound_bundle(data: dict[str, Any]) -> dict[str, Any]:
    bounded: dict[str, Any] = {}
    for mime, value in data.items():
        if mime == "text/plain":
            bounded[mime] = _cut(str(value), MAX_TEXT_CHARS)
        elif isinstance(value, (str, bytes)) and len(value) > MAX_MIME_CHARS:
            note = f"[{mime} of {len(value)} bytes left out: larger than {MAX_MIME_CHARS}]"
            bounded["text/plain"] = f"{bounded.get('text/plain', '')}\n{note}".lstrip()
        else:
            bounded[mime] = value
    return bounded


def _bound_lines(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return lines if len(text) <= MAX_TEXT_CHARS else [_cut(text, MAX_TEXT_CHARS)]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
