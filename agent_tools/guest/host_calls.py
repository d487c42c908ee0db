"""Calls from a cell to functions on the host, over one socket, and the module `sandbox` that code imports for them.

Calls work in cells that await and in cells that do not, in threads, and in any event loop. The host enforces all
limits: this side is a convenience, and code may use the socket itself.

Theory of operation
    There is no reading thread: the waiting callers read. An event loop with pending calls watches the socket. Of the
    threads
    that wait without a loop one is the leader: it reads, for the others too, until its own answer has come; then
    another one leads. Reading is shielded from interrupts, since half of it would lose a message; waiting is not.
"""

import asyncio
import contextlib
import io
import itertools
import os
import select
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .host_call_errors import HostCallArgumentError, HostCallError, HostCallTooLarge, HostGone, error_of
from .kernel.interrupts import shield
from .kernel.session import MESSAGE_LIMITS
from .wire import budget, calls, values
from .wire.framing import FrameError, TooLarge
from .wire.spin_wait import answers as spin_wait

MAX_CALL_BYTES = MESSAGE_LIMITS.call  # of the arguments of one call
UNINTERRUPTED_BYTES = 16 * 1024  # a socket takes so much in one piece
SHORT_READ, LONG_READ = 16 * 1024, 256 * 1024  # bytes; room for a long one costs more than most calls
_VALUE = "arguments"
_SUBJECTS = {"$return": "The result is", "$yield": "What the function yields is"}


def _named(name: str, message: str) -> str:
    """Return a complaint about [args, kwargs] in the caller's terms: `f: arguments[1].city` is `f: city`."""
    if name in _SUBJECTS:
        return message.replace(f"{_VALUE}[0][0]", name[1:], 1)
    message = message.replace(f"{_VALUE}[1].", "", 1).replace(f"{_VALUE}[0]", _VALUE, 1)
    return f"{name}: {message}"


Deliver = Callable[[Any, BaseException | None], None]  # takes an answer or a failure, once, in the reading thread


class Host:
    """The connection of one kernel to the host."""

    def __init__(self, descriptor: int) -> None:
        self._ids = itertools.count(1)
        self._pending: dict[int, Deliver] = {}
        self._connect(descriptor)

    def renew(self, descriptor: int) -> None:
        """Continue over another socket, in a fork that becomes the kernel; pending calls fail."""
        pending, self._pending = self._pending, {}
        for loop in list(self._loops):
            loop.remove_reader(self._socket.fileno())
        for end in (self._bell, self._ring):
            os.close(end)
        self._socket.close()
        self._connect(descriptor)
        for deliver in pending.values():
            deliver(None, HostGone("The kernel ended before the answer came."))

    def _connect(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._poller, self._writable = select.poll(), select.poll()
        self._writable.register(self._socket.fileno(), select.POLLIN | select.POLLOUT)
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        for descriptor in (self._socket.fileno(), self._bell):
            self._poller.register(descriptor, select.POLLIN)
        self._reader = calls.CallReader(
            2 * max(MAX_CALL_BYTES, calls.MAX_MESSAGE_BYTES), max_marks=calls.MAX_ANSWER_MARKS
        )
        self._read_size = SHORT_READ
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._turn = threading.Condition()
        self._has_leader = False
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._is_gone = False
        self._is_held = False
        self._time_left = 0.0

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a host function and await its answer; cancelling this cancels it there."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:  # the loop watches the socket from now on
            loop.add_reader(self._socket.fileno(), self.take_in)
            self._loops.add(loop)
        future: asyncio.Future[Any] = loop.create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            if asyncio._get_running_loop() is loop:
                _settle(future, value, error)
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the waiting task
                loop.call_soon_threadsafe(_settle, future, value, error)

        number = self._send(name, args, kwargs, deliver)
        try:
            return await future
        finally:
            self._forget(number)

    def call_sync(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a host function and wait for its answer; interrupting this cancels it there."""
        answers: list[tuple[Any, BaseException | None]] = []
        caller = threading.get_ident()

        def deliver(value: Any, error: BaseException | None) -> None:
            answers.append((value, error))
            if threading.get_ident() != caller:
                self._wake()

        number = self._send(name, args, kwargs, deliver)
        try:
            while not answers:
                self._lead_or_follow(answers)
        finally:
            self._forget(number)
        value, error = answers[0]
        if error is not None:
            raise error
        return value

    def is_held(self) -> bool:
        """Return whether the run's time limit is paused, by the latest message of the host."""
        self.take_in()
        return self._is_held

    def take_in(self) -> None:
        """Read available messages, unless another thread does."""
        if self._is_gone or not self._reading.acquire(blocking=False):
            return
        try:
            with shield:
                self._feed()
        finally:
            self._reading.release()

    def _lead_or_follow(self, answers: list[Any]) -> None:
        """Wait until an answer may have come: as the leader by reading, else by waiting for the leader."""
        with self._turn:
            if answers:  # another thread read it since the last look
                return
            if self._has_leader:
                self._turn.wait()
                return
            self._has_leader = True
        try:
            while not answers and spin_wait.goes_on():
                self.take_in()
            while not answers and not self._is_gone:
                if (self._bell, select.POLLIN) in self._poller.poll():
                    os.read(self._bell, 4096)
                self.take_in()
        finally:
            with self._turn:
                self._has_leader = False
                self._turn.notify_all()

    def _wake(self) -> None:
        """Wake the threads that wait without a loop: another thread has read answers."""
        with self._turn:
            self._turn.notify_all()
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"\0")

    def _feed(self) -> None:
        try:
            data = self._socket.recv(self._read_size, socket.MSG_DONTWAIT)
            self._read_size = LONG_READ if len(data) == self._read_size else SHORT_READ
            for head, attachments, _ in self._reader.feed(data):
                self._take(head, attachments)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            data = b""
        if not data:
            self._end()

    def _end(self) -> None:
        """Fail all pending calls: the host is gone."""
        self._is_gone = True
        for loop in list(self._loops):
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.remove_reader, self._socket.fileno())
        while self._pending:
            self._pending.popitem()[1](None, HostGone("The host is gone."))

    def _send(self, name: str, args: Any, kwargs: Any, deliver: Deliver) -> int:
        if os.getpid() != self._pid or self._is_gone:
            raise HostGone("A forked process cannot call the host." if not self._is_gone else "The host is gone.")
        try:
            encoded, attachments = values.encode([list(args), dict(kwargs)], _VALUE)
        except values.NotEncodable as exc:
            raise HostCallArgumentError(_named(name, str(exc))) from None
        number = next(self._ids)
        head = {"op": "call", "id": number, "name": name, "args": encoded[0], "kwargs": encoded[1]}
        try:
            message = calls.pack(head, attachments, MAX_CALL_BYTES)
        except TooLarge as exc:
            raise HostCallTooLarge(f"{_SUBJECTS.get(name, f'The arguments of {name} are')} too large: {exc}") from None
        self._pending[number] = deliver
        try:
            self._write(message)
        except BaseException:
            self._forget(number)
            raise
        spin_wait.begin()
        return number

    def _write(self, message: bytes) -> None:
        """Write a whole message: an interrupt must not leave half of one, so a thread does it if it takes time."""
        if len(message) > UNINTERRUPTED_BYTES or not self._has_written(message):
            writer = threading.Thread(target=self._write_all, args=[message], daemon=True)
            writer.start()
            writer.join()
        if self._is_gone:
            raise HostGone("The host is gone.")

    def _has_written(self, message: bytes) -> bool:
        """Write a short message if there is room for it now: Linux takes it whole or not at all, gVisor also a part."""
        with shield:
            if not self._writing.acquire(blocking=False):
                return False
            try:
                if written := self._written(message):
                    self._write_rest(memoryview(message)[written:])
                return written > 0
            finally:
                self._writing.release()

    def _write_all(self, message: bytes) -> None:
        with self._writing:
            self._write_rest(memoryview(message))

    def _write_rest(self, rest: memoryview) -> None:
        """Write all, and read meanwhile: the host may read no call before its answers are read."""
        while rest and not self._is_gone:
            written = self._written(rest)
            rest = rest[written:]
            if not written:
                self._writable.poll()
                self.take_in()

    def _written(self, data: bytes | memoryview) -> int:
        """Write as much as there is room for now; return how many bytes."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._end()
            return 0

    def _forget(self, number: int) -> None:
        """Forget a call; cancel it on the host if it is not over there."""
        if self._pending.pop(number, None) is not None:
            with contextlib.suppress(HostGone):
                self._write(calls.pack({"op": "cancel", "id": number}, []))

    def _take(self, head: dict[str, Any], attachments: list[bytes]) -> None:
        match head:
            case {"op": "hold"}:
                self._is_held, self._time_left = True, signal.setitimer(signal.ITIMER_REAL, 0)[0]
            case {"op": "go"}:
                self._is_held = False
                signal.setitimer(signal.ITIMER_REAL, self._time_left)
            case {"op": "result", "id": number, "value": value}:
                self._deliver(number, lambda: values.decode(value, attachments, _rich, budget.Unbounded()), None)
            case {"op": "error", "id": number}:
                self._deliver(number, None, error_of(head))

    def _deliver(self, number: int, read: Callable[[], Any] | None, error: BaseException | None) -> None:
        deliver = self._pending.pop(number, None)
        if deliver is None:
            return
        value = None
        if read:
            try:
                value = read()
            except Exception as exc:  # noqa: BLE001  (of a library that reads the content)
                error = HostCallError(f"The answer could not be read: {exc}")
        deliver(value, error)


def _settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _rich(kind: str, content: bytes, _: budget.Budget) -> Any:
    if kind == "frame":
        import pyarrow  # images with frames have it

        with pyarrow.ipc.open_stream(content) as stream:
            return stream.read_all().to_pandas()
    if kind == "array":
        import numpy  # images with arrays have it

        return numpy.load(io.BytesIO(content), allow_pickle=False)
    from PIL import Image  # images with pictures have it

    return Image.open(io.BytesIO(content))
