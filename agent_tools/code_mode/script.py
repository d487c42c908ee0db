"""Scripts in a sandbox, whose functions take and return Python values."""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Union

from agent_tools.code_mode.script_arguments import split_args
from agent_tools.code_reader import read_code
from agent_tools.errors import GuestDied, GuestError, GuestTimeout, SessionBusy
from agent_tools.guest.wire.values import encode
from agent_tools.results.execution import Died, Error, Execution, HostCall, Notice, Output, Stream, TimedOut, finished
from agent_tools.runtime.host_calls.host_calls import HostCalls
from agent_tools.runtime.host_calls.script_call import ScriptCall

if TYPE_CHECKING:
    from agent_tools.limits import Limits
    from agent_tools.runtime.session.session import Session

MAX_UNREAD_ITEMS = 16  # yielded items and outputs that may be queued for the reader
CLOSE_SECONDS = 0.05  # seconds between two checks of a waiting `put` whether the queue is closed
_DONE = object()
_call: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("call", default=None)


@dataclass(frozen=True)
class StdoutEvent:
    """The script printed."""

    data: str


@dataclass(frozen=True)
class StderrEvent:
    """The script wrote to stderr."""

    data: str


@dataclass(frozen=True)
class ResultEvent:
    """A generator function yielded a value."""

    data: Any


@dataclass(frozen=True)
class HostCallEvent:
    """A call of a host function has ended."""

    data: HostCall


@dataclass(frozen=True)
class EndEvent:
    """The function returned; always the last event, unless an error is raised."""

    data: Any


Event = Union[StdoutEvent, StderrEvent, ResultEvent, HostCallEvent, EndEvent]


class Script:
    """A script of one sandbox, made by `Template.create`.

    It runs one call at a time; a call during another one raises `SessionBusy`.

    Attributes:
        last: the last call's execution, with all outputs.
    """

    def __init__(self, session: Session, calls: HostCalls, limits: Limits) -> None:
        self._session = session
        self._calls = calls
        self._limits = limits
        self._busy = threading.Lock()
        self._cancelled = threading.Event()
        self.last: Execution | None = None

    def load_script(self, code: str, timeout: float | None = None) -> None:
        """Run code; its functions and variables stay. It is read as by `Sandbox.run_code`: see `last.notes`.

        Raises:
            InvalidParams: it is not text, or can be read in several ways.
            GuestError, GuestTimeout, GuestDied: the code did not reach its end.
        """
        reading = read_code(code, self._limits)
        execution = finished(self._stream(reading.code, timeout))
        self._finish(replace(execution, outputs=(*map(Notice, reading.notes), *execution.outputs)))

    def run(self, name: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Call a function of the script (plain or async), or read a variable, and return the value.

        Raises:
            GuestError: the function raised. GuestTimeout: it ran longer than `timeout` seconds.
            GuestDied: its kernel ended.
            SessionBusy: another call is running.
            ValueError: an argument is of a type that cannot be sent to the guest.
        """
        code = _call_code(name, bool(args or kwargs), is_streamed=False)
        call = _script_call(name, args, kwargs, lambda _: None)
        self._finish(finished(self._stream(code, timeout, call)))
        return call.result

    def run_stream(
        self, name: str, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> Generator[Event, None, None]:
        """Like `run`, but yield events while the function prints, yields and calls, and its value at the end.

        Closing the iterator early interrupts the function.
        """
        code = _call_code(name, bool(args or kwargs), is_streamed=True)
        events, cancelled = _EventQueue(), threading.Event()
        call = _script_call(name, args, kwargs, lambda item: events.put(ResultEvent(item)))
        outputs = self._stream(code, timeout, call, cancelled)
        with self._pumping(outputs, events, cancelled):
            while (event := events.get()) is not _DONE:
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, Execution):
                    self._finish(event)
                else:
                    yield event
            yield EndEvent(call.result)

    def cancel(self, call: threading.Event | None = None) -> None:
        """Interrupt the running call, as Ctrl-C would; the script's state stays. Any thread may call it.

        `call`, a value of `calling`, names the call to interrupt, even before it runs.
        """
        self._session.cancel(call or self._cancelled)

    @staticmethod
    @contextlib.contextmanager
    def calling() -> Iterator[threading.Event]:
        """Yield a value by which `cancel` interrupts the calls of the block, at any stage."""
        event = threading.Event()
        token = _call.set(event)
        try:
            yield event
        finally:
            _call.reset(token)

    def _stream(
        self,
        code: str,
        timeout: float | None,
        call: ScriptCall | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        if not self._busy.acquire(blocking=False):
            raise SessionBusy("The sandbox is running another call; wait for it, or create a second sandbox.")
        try:
            self._cancelled = cancelled or _call.get() or threading.Event()
            seconds = self._limits.timeout if timeout is None else timeout
            outputs = self._session.stream(code, seconds, self._cancelled)
            with self._calls.script_call(call), closing(outputs):
                return (yield from outputs)
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def _pumping(
        self, outputs: Generator[Output, None, Execution], events: _EventQueue, cancelled: threading.Event
    ) -> Iterator[None]:
        """Run the code in its own thread, so that items and outputs reach the reader in order."""
        # the context has the event loop of the caller, in which host calls are tasks
        work = partial(contextvars.copy_context().run, _pump, outputs, events)
        worker = threading.Thread(target=work, name="agent-tools-script", daemon=True)
        worker.start()
        try:
            yield
        finally:
            events.close()
            self._session.cancel(cancelled)
            worker.join()

    def _finish(self, execution: Execution) -> None:
        self.last = execution
        match execution.error:
            case TimedOut() as ending:
                raise GuestTimeout(ending.text, execution)
            case Died() as ending:
                raise GuestDied(ending.text, execution)
            case Error(name, value, traceback):
                raise GuestError(name, value, traceback, execution)


class _EventQueue:
    """A queue of events for the reader. `put` waits while it is full, and drops the event once the queue is closed."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(MAX_UNREAD_ITEMS)
        self._is_closed = False
        self.get = self._queue.get

    def put(self, event: Any) -> None:
        while not self._is_closed:
            with contextlib.suppress(queue.Full):
                self._queue.put(event, timeout=CLOSE_SECONDS)
                return

    def close(self) -> None:
        self._is_closed = True


def _pump(outputs: Generator[Output, None, Execution], events: _EventQueue) -> None:
    try:
        while True:
            try:
                output = next(outputs)
            except StopIteration as end:
                events.put(end.value)
                break
            for event in _events(output):
                events.put(event)
    except BaseException as exc:  # noqa: BLE001  (raised again where the events are read)
        events.put(exc)
    events.put(_DONE)


def _script_call(name: str, args: Any, kwargs: Any, take_item: Callable[[Any], None]) -> ScriptCall:
    return ScriptCall(encode(split_args(args, kwargs), f"arguments of {name}"), take_item)


def _call_code(name: str, has_args: bool, *, is_streamed: bool) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a function.")
    return f"await __import__('sandbox').run_function({name!r}, {has_args}, {is_streamed})"


def _events(output: Output) -> Iterator[Event]:
    match output:
        case Stream("stdout", text):
            yield StdoutEvent(text)
        case Stream(_, text):
            yield StderrEvent(text)
        case HostCall():
            yield HostCallEvent(output)
