"""The event loop of all cells, and `asyncio.run` in a cell.

Theory of operation
    A cell that does not await runs while the loop is only marked as running, so that `asyncio.create_task` works as it
    does in a notebook. A script's own `asyncio.run(main())`, or `run_until_complete`, is refused where a loop is
    running. So for as long as such a call lasts the mark is taken away (`stepping_aside`), and nothing of asyncio's is
    changed. A cell that awaits runs in the loop; for a call of `asyncio.run` within it the loop steps aside, too, and
    stands still meanwhile, as it does for any code that does not await. Within other loops all is as it always is.
"""

import asyncio
import contextlib
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from ..wire.spin_wait import SpinningSelector


class CellLoop(asyncio.SelectorEventLoop):
    """The event loop of all cells; `was_used` once code has given it something to do."""

    was_used = False
    is_marked = False
    """True while a cell runs that does not await: for code the loop is running, which may not be run or closed."""
    _selector: selectors.BaseSelector
    _ssock: socket.socket
    _csock: socket.socket
    _internal_fds: int
    _make_self_pipe: Callable[[], None]

    def call_soon(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Note the use."""
        self.was_used = True
        return super().call_soon(*args, **kwargs)

    def call_at(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Note the use."""
        self.was_used = True
        return super().call_at(*args, **kwargs)

    def is_running(self) -> bool:
        """Return whether code is run by the loop, as far as code can tell."""
        return self.is_marked or super().is_running()

    def close(self) -> None:
        """Close, unless a script does that at its end: the loop is for the cells to come, too."""
        if not self.is_marked:
            super().close()

    def renew(self) -> None:
        """Have a selector of its own in a fork, where the parent's is shared with it; tasks and timers go on."""
        if self.is_closed():
            return
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
    loop, runner = asyncio.BaseEventLoop, getattr(asyncio, "Runner", None)  # the latter from Python 3.11 on
    loop.run_forever = _aside(loop.run_forever)  # type: ignore[method-assign]
    loop.run_until_complete = _aside(loop.run_until_complete)  # type: ignore[method-assign]
    if runner:
        runner.run = _aside(runner.run)


def _aside(stock: Any) -> Any:
    @wraps(stock)
    def run(*args: Any, **kwargs: Any) -> Any:
        with stepping_aside():
            return stock(*args, **kwargs)

    return run


@contextlib.contextmanager
def stepping_aside() -> Iterator[None]:
    """Within it no loop runs in this thread if the cells' loop would, which is the thread's loop again afterwards."""
    loop = asyncio._get_running_loop()
    if not isinstance(loop, CellLoop):
        yield
        return
    is_marked, loop.is_marked = loop.is_marked, False
    wakes = signal.set_wakeup_fd(-1)  # another loop may take it for its own signals
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        loop.is_marked = is_marked
        asyncio.set_event_loop(loop)
        asyncio._set_running_loop(loop)
