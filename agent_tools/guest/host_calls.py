"""Calls from a cell to functions on the host: over one socket, with a thread that takes the answers.

Works in cells that await and in cells that do not, in threads, and in any event loop. All limits are the host's: this
side is a convenience, and the socket is no secret in here.
"""

import asyncio
import builtins
import contextlib
import itertools
import os
import queue
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from .wire import budget, frames, values


class HostCallError(Exception):
    """A host function failed; `type_name` is its exception's type there."""

    type_name = ""


class HostCallNotFound(HostCallError, NameError):
    """There is no host function of that name."""


class HostCallArgumentError(HostCallError, TypeError, ValueError):
    """The arguments do not fit the host function."""


class HostCallTimeout(HostCallError, TimeoutError):
    """The host function took longer than it may."""


class HostCallDenied(HostCallError, PermissionError):
    """The call was not approved."""


class HostCallBudgetExceeded(HostCallError, RuntimeError):
    """The run has made all the calls it may."""


class HostCallTooLarge(HostCallError, ValueError):
    """A value is larger than what may cross."""


class HostGone(HostCallError, ConnectionError):
    """The host does not answer any more."""


_KINDS = {cls.__name__: cls for cls in HostCallError.__subclasses__()}


UNINTERRUPTED_BYTES = 16 * 1024  # a socket takes so much in one piece
_VALUE = "arguments"
_SUBJECTS = {"$return": "The result is", "$yield": "What the function yields is"}


def _named(name: str, message: str) -> str:
    """A complaint about [args, kwargs] in the words of the caller: `f: arguments[1].city` is `f: city`."""
    if name in _SUBJECTS:
        return message.replace(f"{_VALUE}[0][0]", name[1:], 1)
    message = message.replace(f"{_VALUE}[1].", "", 1).replace(f"{_VALUE}[0]", _VALUE, 1)
    return f"{name}: {message}"


Deliver = Callable[[Any, BaseException | None], None]  # takes an answer or a failure, once, in the reading thread


class Host:
    """The connection. Made once in each kernel; the thread starts with the first call."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: dict[int, Deliver] = {}
        self._thread: threading.Thread | None = None
        self._is_gone = False
        self._time_left = 0.0

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a host function and await its answer; cancelling this cancels it there."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, value, error)

        number = self._send(name, args, kwargs, deliver)
        try:
            return await future
        finally:
            self._forget(number)

    def call_sync(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a host function and wait for its answer; interrupting this cancels it there."""
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        number = self._send(name, args, kwargs, lambda value, error: answers.put((value, error)))
        try:
            value, error = answers.get()
        finally:
            self._forget(number)
        if error is not None:
            raise error
        return value

    def _send(self, name: str, args: Any, kwargs: Any, deliver: Deliver) -> int:
        if os.getpid() != self._pid or self._is_gone:
            raise HostGone(
                "The host is not to be reached from a forked process." if not self._is_gone else "The host is gone."
            )
        try:
            encoded, attachments = values.encode([list(args), dict(kwargs)], _VALUE)
        except values.NotEncodable as exc:
            raise HostCallArgumentError(_named(name, str(exc))) from None
        number = next(self._ids)
        head = {"op": "call", "id": number, "name": name, "args": encoded[0], "kwargs": encoded[1]}
        try:
            message = frames.pack(head, attachments)
        except frames.TooLarge as exc:
            raise HostCallTooLarge(f"{_SUBJECTS.get(name, f'The arguments of {name} are')} too large: {exc}") from None
        with self._lock:
            self._pending[number] = deliver
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, name="host-calls", daemon=True)
                self._thread.start()
        self._write(message)
        return number

    def _write(self, message: bytes) -> None:
        """Write a message whole: an interrupt may not leave half of one, so a long one is written by a thread."""
        if len(message) <= UNINTERRUPTED_BYTES:
            self._write_all(message)
        else:
            writer = threading.Thread(target=self._write_all, args=[message], daemon=True)
            writer.start()
            writer.join()
        if self._is_gone:
            raise HostGone("The host is gone.")

    def _write_all(self, message: bytes) -> None:
        with self._lock:
            try:
                self._socket.sendall(message)
            except OSError:
                self._is_gone = True

    def _forget(self, number: int) -> None:
        """The call is over for its caller; the host is told if it does not know yet."""
        if self._pending.pop(number, None) is not None:
            with contextlib.suppress(HostGone):
                self._write(frames.pack({"op": "cancel", "id": number}, []))

    def _read(self) -> None:
        reader = frames.Reader(2 * frames.MAX_MESSAGE_BYTES, max_marks=frames.MAX_ANSWER_MARKS)
        with contextlib.suppress(OSError, frames.FrameError):
            while data := self._socket.recv(256 * 1024):
                for head, attachments, _ in reader.feed(data):
                    self._take(head, attachments)
        self._is_gone = True
        for deliver in list(self._pending.values()):
            deliver(None, HostGone("The host is gone."))

    def _take(self, head: dict[str, Any], attachments: list[bytes]) -> None:
        match head:
            case {"op": "hold"}:
                self._time_left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
            case {"op": "go"} if self._time_left:
                signal.setitimer(signal.ITIMER_REAL, self._time_left)
            case {"op": "result", "id": number, "value": value}:
                self._deliver(number, lambda: values.decode(value, attachments, _rich, budget.Unbounded()), None)
            case {"op": "error", "id": number}:
                self._deliver(number, None, _error(head))

    def _deliver(self, number: int, read: Callable[[], Any] | None, error: BaseException | None) -> None:
        deliver = self._pending.pop(number, None)
        if deliver is None:
            return
        value = None
        if read:
            try:
                value = read()
            except Exception as exc:  # noqa: BLE001  (whatever a library makes of the content is the caller's to hear)
                error = HostCallError(f"The answer could not be read: {exc}")
        deliver(value, error)


def _settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _error(head: dict[str, Any]) -> BaseException:
    """The host's failure as an exception: one of ours, a builtin of the same name, or HostCallError with the name."""
    kind, name, message = str(head.get("kind")), str(head.get("type") or ""), str(head.get("message") or "")
    builtin = getattr(builtins, name, None)
    is_safe = isinstance(builtin, type) and issubclass(builtin, Exception) and builtin not in _NOT_FROM_TEXT
    if kind not in _KINDS and is_safe:
        return builtin(message)  # type: ignore[no-any-return,misc]
    error = _KINDS.get(kind, HostCallError)(message if kind in _KINDS or not name else f"{name}: {message}")
    error.type_name = name
    return error


# These mean something to an event loop or an iteration, or cannot be made of a message alone.
_NOT_FROM_TEXT = {StopIteration, StopAsyncIteration, UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError} | {
    getattr(builtins, name) for name in ("ExceptionGroup",) if hasattr(builtins, name)
}


def _rich(kind: str, content: bytes, _: budget.Budget) -> Any:
    import io

    if kind == "frame":
        import pyarrow

        with pyarrow.ipc.open_stream(content) as stream:
            return stream.read_all().to_pandas()
    if kind == "array":
        import numpy

        return numpy.load(io.BytesIO(content), allow_pickle=False)
    from PIL import Image

    return Image.open(io.BytesIO(content))


def install(descriptor: int, namespace: dict[str, Any]) -> None:
    """Make `sandbox`, `sandbox.asyncio` and `sandbox.values` importable, and give `namespace` nothing but those."""
    host = Host(descriptor)
    package, asynchronous = types.ModuleType("sandbox"), types.ModuleType("sandbox.asyncio")
    package.__path__ = []

    async def hostcall(name: str, payload: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call a host function by its name, with one payload or with arguments."""
        return await host.call(name, (payload, *args), kwargs)

    def hostcall_sync(name: str, payload: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call a host function by its name and wait for it."""
        return host.call_sync(name, (payload, *args), kwargs)

    def define(name: str, source: str) -> None:
        """Make a module of this source, and give its public names to the cells."""
        import linecache

        file = f"<{name}>"
        module = types.ModuleType(name)
        module.__dict__.update(_call=host.call, _call_sync=host.call_sync)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        sys.modules[name] = module
        exec(compile(source, file, "exec"), module.__dict__)
        public = getattr(module, "__all__", [key for key in vars(module) if not key.startswith("_")])
        namespace.update({key: getattr(module, key) for key in public})

    asynchronous.hostcall = hostcall  # type: ignore[attr-defined]
    asynchronous.run = asyncio.run  # type: ignore[attr-defined]
    package.asyncio, package.hostcall, package.define = asynchronous, hostcall_sync, define  # type: ignore[attr-defined]
    package.run_function = _function_runner(host, namespace)  # type: ignore[attr-defined]
    package.HostCallError = HostCallError  # type: ignore[attr-defined]
    vars(package).update(_KINDS)
    sys.modules.update({"sandbox": package, "sandbox.asyncio": asynchronous})


def _function_runner(host: Host, namespace: dict[str, Any]) -> Callable[[str, bool, bool], Any]:
    async def run_function(name: str, has_args: bool, is_streamed: bool) -> None:
        """Call a function of the script with the host's arguments, and give the host what it returns or yields."""
        args, kwargs = await host.call("$arguments", (), {}) if has_args else ((), {})
        if name not in namespace:
            raise NameError(f"the script defines no {name!r}")
        found = namespace[name]
        result = found(*args, **kwargs) if callable(found) else found
        if hasattr(result, "__await__"):
            result = await result
        if hasattr(result, "__aiter__"):
            async for item in result:
                if is_streamed:
                    await host.call("$yield", (item,), {})
            result = None
        elif isinstance(result, types.GeneratorType):
            for item in result:
                if is_streamed:
                    await host.call("$yield", (item,), {})
            result = None
        await host.call("$return", (result,), {})

    return run_function
