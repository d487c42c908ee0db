"""The kernel: ipykernel's class with one socket, without its application, threads and other sockets.

Requests are read and answered in the main thread, one after the other. A cell that does not await runs without an
event loop's turn: the loop is only marked as running, so that `asyncio.create_task` works as it does in a notebook. The
loop itself runs while a cell awaits, and, once code has used it, also between requests, so that tasks go on.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from IPython.core.tbtools import _safe_string
from traitlets import Type

from ..checkpoints.taking import Checkpoints
from ..wire.messages import IOPUB, MAX_REQUEST_BYTES, SHELL, STDIN, MessageReader
from ..wire.sockets import await_input
from ..wire.spin_wait import SpinningSelector
from . import history, interrupts
from .cell_loop import CellLoop, let_cells_run_loops
from .cell_processes import cell_processes
from .finish import finish
from .session import ChannelNumber, now
from .shell import SandboxShell, is_users

CHUNK_BYTES = 64 * 1024
NO_INPUT = "Python {}() function is disabled: put the value into the code."
PAUSE = 0.003  # seconds without a request after a copy: what is done then is seldom in the way of one
SETTLE_SECONDS = 0.05  # after an interrupt: a second one would cut short what the first has begun to release


class Inbox:
    """The messages of one connection: requests in order, and answers to `input()`. Late answers are dropped."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = MessageReader(MAX_REQUEST_BYTES)
        self._waiting: deque[list[bytes]] = deque()

    def requests(self, data: bytes) -> Iterator[list[bytes]]:
        """Read bytes; yield the parts of each request, first those that came while code waited for an answer."""
        self._take(data)
        while self._waiting:
            yield self._waiting.popleft()

    def drop_answers(self) -> None:
        """Drop the answers that came for code that was interrupted while it waited."""
        while await_input(self._socket.fileno(), 0):
            with interrupts.shield:
                data = self._socket.recv(CHUNK_BYTES)
                self._take(data)
            if not data:
                return

    def await_answer(self) -> list[bytes]:
        """Wait for the next answer, until interrupted; requests that come meanwhile are queued.

        Raises:
            EOFError: the host hung up.
        """
        while True:
            await_input(self._socket.fileno(), None)
            with interrupts.shield:  # bytes that were read must not be lost
                data = self._socket.recv(CHUNK_BYTES)
                answers = self._take(data)
            if answers:
                return answers[0]
            if not data:
                raise EOFError("The client has gone.")

    def _take(self, data: bytes) -> list[list[bytes]]:
        """Put requests in the queue; return answers."""
        answers = []
        for channel, parts in self._reader.feed(data):
            if channel == SHELL:
                self._waiting.append(parts)
            elif channel == STDIN:
                answers.append(parts)
        return answers


class NoShellThread:
    """Stands for ipykernel's thread of subshells, which this kernel does not have."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class SandboxKernel(IPythonKernel):
    """IPython's kernel; `input()` asks the client of the request, and an interrupt wakes a cell that awaits."""

    inbox: Inbox
    shell_class = Type(SandboxShell)
    debugger_class = Type(object)  # there is none; the stock default would be imported for its name

    def __init__(self, **kwargs: Any) -> None:
        log = logging.getLogger("kernel")
        log.setLevel(logging.CRITICAL)  # the log goes nowhere
        sockets = {"iopub_socket": ChannelNumber(IOPUB), "stdin_socket": ChannelNumber(STDIN)}
        super().__init__(log=log, shell_channel_thread=NoShellThread(), **sockets, **kwargs)
        self.shell_channel = ChannelNumber(SHELL)
        let_cells_run_loops()
        self.loop = CellLoop(SpinningSelector())
        self.loop.context = copy_context()
        asyncio.set_event_loop(self.loop)

    @property
    def io_loop(self) -> Any:
        """The loop as tornado's, which is imported when something asks for it."""
        from tornado.ioloop import IOLoop  # heavy, and rarely needed

        return IOLoop.current()

    def serve(self, connected: socket.socket, checkpoints: Checkpoints, **news: Any) -> None:
        """Answer requests until the host hangs up. The first message, that the kernel is ready, carries the `news`.

        Raises:
            Woken: in a copy that was left between two requests and is to go on as the kernel.
        """
        self._wake_loop_by_signals()
        self.session.send(self.iopub_socket, "status", {"execution_state": "starting", **news})
        self.session.flush()
        self.inbox = Inbox(connected)
        while data := self._receive(connected, checkpoints):
            for parts in self.inbox.requests(data):
                self._handle(self.session.read(parts), checkpoints)

    def _receive(self, connected: socket.socket, checkpoints: Checkpoints) -> bytes:
        """Wait for bytes; meanwhile take a checkpoint, and run tasks of earlier cells."""
        timeout = checkpoints.timeout()
        if timeout is not None and not (timeout and self.loop.await_input(connected.fileno(), timeout)):
            checkpoints.take_copy()
            if not self.loop.await_input(connected.fileno(), PAUSE):
                checkpoints.copy_ahead()
        self.loop.await_input(connected.fileno())
        data = connected.recv(CHUNK_BYTES)
        checkpoints.settle()
        return data

    def renew(self) -> None:
        """Prepare to serve in a fork."""
        for end in self._signals:
            self.loop.remove_reader(end)
            os.close(end)
        self.loop.renew()
        asyncio.set_event_loop(self.loop)  # which a fork forgets

    def _handle(self, request: dict[str, Any], checkpoints: Checkpoints) -> None:
        """Answer one request, between `busy` and `idle` unless it is unwatched."""
        checkpoints.begin(request["metadata"].get("is_urgent"))
        self.session.printed.send()  # what background code has printed so far belongs to no cell
        for run in (_at_once, self.loop.context.run):
            run(self.set_parent, [], request, channel="shell")
            run(self.session.printed.set_parent, request)
        self.session.unwatched = request if request["metadata"].get("is_unwatched") is True else {}
        self._publish_status("busy", "shell")
        try:
            handler = self.shell_handlers.get(request["msg_type"])
            if handler:
                self._answer(handler(self.shell_channel, [], request), request)
        finally:
            self._publish_status("idle", "shell")
            self.session.flush()
            self.session.unwatched = {}
        run, is_urgent = request["metadata"].get("checkpoint"), request["metadata"].get("is_urgent")
        checkpoints.note(run, is_urgent, is_cell=not request["content"].get("silent"))

    def _answer(self, answer: Any, request: dict[str, Any]) -> None:
        """Run the coroutine of a handler; interrupts may reach the code that it runs."""
        interrupts.expect()
        try:
            if not asyncio.iscoroutine(answer):
                return
            if request["msg_type"] == "execute_request" and self._awaits(str(request["content"].get("code", ""))):
                self.loop.finish(answer)
            else:
                self._run_at_once(answer)
        except BaseException as exc:  # noqa: BLE001  (of code that meddles with what runs it)
            self._reply_with(exc, request)
        finally:
            interrupts.ignore()

    def _reply_with(self, exc: BaseException, request: dict[str, Any]) -> None:
        """Send the reply of a handler that failed: the host would wait for it until its time limit."""
        kind = request["msg_type"].replace("_request", "_reply")
        if kind == request["msg_type"]:  # it has no reply
            return
        lines = traceback.format_exception(exc)
        content = {
            "status": "error",
            "ename": type(exc).__name__,
            "evalue": _safe_string(exc, "message"),
            "traceback": lines,
        }
        self.session.send(self.shell_channel, kind, {**content, "execution_count": self.execution_count}, request)

    def _awaits(self, code: str) -> bool:
        """Return whether a cell needs a running loop."""
        try:
            return bool(self.shell.should_run_async(code, transformed_cell=self.shell.transform_cell(code)))
        except Exception:  # noqa: BLE001  (the shell reports the error when the cell runs)
            return False

    def _run_at_once(self, answer: Coroutine[Any, Any, Any]) -> None:
        """Run a handler with the loop marked as running. None of ipykernel's waits."""
        asyncio._set_running_loop(self.loop)
        self.loop.is_marked = True
        try:
            with contextlib.suppress(StopIteration):
                self.loop.context.run(answer.send, None)
        finally:
            self.loop.is_marked = False
            asyncio._set_running_loop(None)

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """Publish the progress of a request, unless it is unwatched."""
        if not self.session.unwatched:
            super()._publish_status(status, channel, parent)

    def init_metadata(self, parent: Any) -> dict[str, Any]:
        """Return the metadata of a reply, with its start time as text."""
        return {**super().init_metadata(parent), "started": now()}

    def finish_metadata(self, parent: Any, metadata: Any, reply_content: Any) -> Any:
        """Add to the reply of a cell what still runs, once, if that is told by its answer."""
        if not parent["content"].get("silent"):
            names, blocks = cell_processes.left(has_checkpoints=bool(parent["metadata"].get("checkpoint")))
            if names:
                reply_content["still_running"] = {"names": names, "blocks_checkpoints": blocks}
        return metadata

    def raw_input(self, prompt: object = "") -> str:
        """Ask the client for a line if the request allows stdin; raise at once otherwise."""
        return self._ask(str(prompt), "input")

    def getpass(self, prompt: object = "", stream: Any = None) -> str:
        """Ask for a line that is not shown while it is typed."""
        return self._ask(str(prompt), "getpass")

    def _ask(self, prompt: str, function: str) -> str:
        if not self._allow_stdin:
            raise NotImplementedError(NO_INPUT.format(function))
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{function}() can only be used in the main thread here.")
        self.inbox.drop_answers()
        asked = {"prompt": prompt, "password": function == "getpass"}
        self.session.send(self.stdin_socket, "input_request", asked, parent=self.get_parent("shell"))
        value = self.session.read(self.inbox.await_answer())["content"].get("value")
        if value == "\x04":
            raise EOFError
        return value if isinstance(value, str) else ""

    def do_history(self, hist_access_type: str, output: bool, raw: bool, **asked: Any) -> dict[str, Any]:
        """Answer from the inputs of this kernel; there is no database."""
        return {
            "status": "ok",
            "history": history.history_entries(self.shell.history_manager, hist_access_type, raw, output, asked),
        }

    @contextmanager
    def _cancel_on_sigint(self, future: Any) -> Iterator[None]:
        """End a cell that awaits: at once where user code runs, in any task; the stock kernel waits until it awaits."""
        last, is_due, was_cancelled = -SETTLE_SECONDS, False, False

        def end(_number: int, frame: Any) -> None:
            nonlocal last, is_due, was_cancelled
            if interrupts.is_shielded():  # it is raised again soon
                return
            now = time.monotonic()
            if now < last + SETTLE_SECONDS and not is_due:  # delayed, not dropped: code may have swallowed the first
                interrupts.raise_soon(last + SETTLE_SECONDS - now)
                return
            last = now
            interrupts.note_raised()
            if is_users(frame):
                is_due = False
                interrupts.rings()
                raise asyncio.CancelledError  # in a task KeyboardInterrupt would end the whole event loop
            if is_due:
                interrupts.raise_soon()
            elif not was_cancelled:  # once: the traceback follows
                is_due = was_cancelled = True
                self.loop.call_soon_threadsafe(cancel)
                interrupts.raise_soon()  # in code that the loop runs before `cancel`, and that may run for ever

        def cancel() -> None:
            nonlocal is_due
            interrupts.rings()
            if is_due:
                is_due = False
                future.cancel()

        before = signal.signal(signal.SIGINT, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    async def shutdown_request(self, stream: Any, _ident: Any, parent: dict[str, Any]) -> None:
        """Finish as a program does. The process stays, until PID 1 kills it."""
        try:
            finish(self.shell)
        finally:
            self.session.send(stream, "shutdown_reply", {"status": "ok"}, parent)

    def _abort_queues(self, *_: Any) -> None:
        """Do nothing when a cell fails: requests are read one at a time, so none has been taken in."""

    @property
    def _supports_kernel_subshells(self) -> bool:
        return False

    def _wake_loop_by_signals(self) -> None:
        """Let signals wake an idle event loop: a stock kernel keeps waiting through SIGINT."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals = reader, writer
        self.loop.add_reader(reader, lambda: os.read(reader, 4096))
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


def _at_once(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
