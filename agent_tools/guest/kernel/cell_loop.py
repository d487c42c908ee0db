"""The event loop of all cells, and `asyncio.run` in a cell.

Theory of operation
    A cell that does not await runs while the loop is only marked as running, so that `asyncio.create_task` works as
    it does in a notebook. A script's own `asyncio.run(main())`, or `run_until_complete`, is refused where a loop is
    running. So for as long as such a call lasts the mark is taken away (`stepping_aside`), and nothing of asyncio's
    is changed. A cell that awaits runs in the loop; for a call of `asyncio.run` within it the loop steps aside, too,
    and stands still until it returns, as for any code that does not await. Other loops behave as usual.
"""

import asyncio
import contextlib
import selectors
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from functools import wraps
from typing import Any

from ..wire.sockets import await_any, await_input
from ..wire.spin_wait import SpinningSelector
from . import interrupts
from .shell import SandboxShell


class CellLoop(asyncio.SelectorEventLoop):
    """The event loop of all cells; `was_used` once code has given it something to do."""

    was_used = False
    context: Context
    """The context of all cells: what one sets, such as decimal's precision, holds for the next, also after `await`."""
    is_marked = False
    """True while a cell runs that does not await: for code the loop is running, which may not be run or closed."""
    _selector: selectors.BaseSelector
    _ssock: socket.socket
    _csock: socket.socket
    _internal_fds: int
    _make_self_pipe: Callable[[], None]

    def create_task(self, coro: Any, **kwargs: Any) -> Any:
        """Make a task; that of a cell runs in the context of all cells, others in copies, before Python 3.11 all."""
        if getattr(coro, "cr_code", None) is SandboxShell.run_cell_async.__code__:
            kwargs.setdefault("context", self.context)
        return super().create_task(coro, **kwargs)

    def call_soon(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Note the use."""
        self.was_used = True
        return super().call_soon(*args, **kwargs)

    def call_at(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Note the use."""
        self.was_used = True
        return super().call_at(*args, **kwargs)

    def is_running(self) -> bool:
        """Return whether code is run by the loop, as far as code can tell; no thread may run it."""
        return self.is_marked or super().is_running() or not interrupts.is_main_thread()

    def close(self) -> None:
        """Stay open: the loop is for the cells to come, too."""

    def await_input(self, descriptor: int, seconds: float | None = None) -> bool:
        """Wait until there is something to read, up to a time; return whether there is.

        Meanwhile run what code has given the loop to do. The wait continues when code stops the loop, and after an
        exception. No task waits: code may cancel all tasks.
        """
        ends = None if seconds is None else self.time() + seconds
        while not await_input(descriptor, 0):
            left = None if ends is None else ends - self.time()
            if left is not None and left <= 0:
                return False
            try:
                if self.was_used:
                    self._run_until_input(descriptor, left)
                elif await_any([descriptor, self._ssock.fileno()], [], left):
                    self.was_used = not await_input(descriptor, 0)  # by a thread, or a signal
            except BaseException as exc:  # noqa: BLE001  (of callbacks, tasks and signal handlers)
                self._show(exc)
        return True

    def _run_until_input(self, descriptor: int, seconds: float | None) -> None:
        """Run the loop until there is something to read, a time has passed, or code stops the loop."""
        alarm = None if seconds is None else self.call_later(seconds, self.stop)
        self.add_reader(descriptor, self.stop)
        try:
            self.run_forever()
        finally:
            self.remove_reader(descriptor)
            if alarm:
                alarm.cancel()

    def finish(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, also when code stops the loop. An error of a signal handler cancels it."""
        task = self.context.run(self.create_task, coroutine)
        task.add_done_callback(lambda _: self.stop())
        while not task.done():
            if error := self._error():
                task.cancel(repr(error))
        return task.result()

    def _error(self) -> Exception | None:
        """Run until code, or the kernel, stops the loop; return the error of a signal handler that ended the loop."""
        try:
            self.run_forever()
        except (SystemExit, KeyboardInterrupt) as exc:  # of a callback or another task, which does not end the program
            self._show(exc)
        except Exception as exc:  # noqa: BLE001  (of a signal handler: errors of callbacks do not end the loop)
            return exc
        return None

    def _show(self, exc: BaseException) -> None:
        """Print an exception that ended no cell, as asyncio prints those of callbacks."""
        self.default_exception_handler({"message": "Exception outside of a cell's code", "exception": exc})

    def renew(self) -> None:
        """Use a new selector in a fork, where the parent's is shared; tasks and timers continue."""
        shared = self._selector
        self._selector = SpinningSelector()
        for key in list(shared.get_map().values()):
            if key.fd != self._ssock.fileno():
                with contextlib.suppress(OSError, ValueError):
                    self._selector.register(key.fileobj, key.events, key.data)
        shared.close()
        self._ssock.close()
        self._csock.close()
        self._internal_fds -= 1
        self._make_self_pipe()


def let_cells_run_loops() -> None:
    """Let what runs a loop to its end do so in a cell."""
    asyncio.run = asyncio.runners.run = _aside(asyncio.run)
    loop = asyncio.BaseEventLoop
    runner: Any = asyncio.Runner
    loop.run_forever = _aside(loop.run_forever)  # type: ignore[method-assign]
    loop.run_until_complete = _aside(loop.run_until_complete)  # type: ignore[method-assign]
    runner.run = _aside(_cancelling(runner.run))
    runner._on_sigint = _noted(runner._on_sigint)


def _aside(stock: Any) -> Any:
    @wraps(stock)
    def run(*args: Any, **kwargs: Any) -> Any:
        with stepping_aside():
            return stock(*args, **kwargs)

    return run


def _cancelling(stock: Any) -> Any:
    """Let `Runner.run` cancel its task at an interrupt, as it does where Python's own handler is set.

    Raised in the middle of asyncio's code, an interrupt could leave a task that is never run again, and waited for.
    """

    @wraps(stock)
    def run(*args: Any, **kwargs: Any) -> Any:
        handler, default = signal.getsignal(signal.SIGINT), signal.default_int_handler
        if getattr(handler, "__module__", "").startswith(f"{__package__}."):
            signal.default_int_handler = handler  # type: ignore[assignment]
        try:
            return stock(*args, **kwargs)
        finally:
            signal.default_int_handler = default

    return run


def _noted(stock: Any) -> Any:
    def on_interrupt(*args: Any, **kwargs: Any) -> None:
        if not interrupts.is_shielded():
            interrupts.note_raised()
            stock(*args, **kwargs)

    return on_interrupt


@contextlib.contextmanager
def stepping_aside() -> Iterator[None]:
    """Unmark the cells' loop as running in this thread during the block."""
    loop = asyncio._get_running_loop()
    if not isinstance(loop, CellLoop):
        yield
        return
    with interrupts.shield:
        is_marked, loop.is_marked = loop.is_marked, False
        wakes = signal.set_wakeup_fd(-1)  # another loop may take it for its own signals
        asyncio._set_running_loop(None)
    try:
        yield
    finally:
        with interrupts.shield:
            signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
            loop.is_marked = is_marked
            asyncio.set_event_loop(loop)
            asyncio._set_running_loop(loop)
