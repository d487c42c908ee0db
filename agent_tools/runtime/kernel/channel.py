"""One kernel's messages and the lifeline's reports, read as one sequence of events.

The socket is non-blocking. The size of every message is checked before it is stored (guest/wire/framing.py), and a
request of which the kernel reads nothing for SEND_SECONDS, or less than SLOWEST, closes the channel, as does one that
is sent no longer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

from agent_tools.errors import KernelDied, ProtocolViolation
from agent_tools.guest.wire.framing import FrameError
from agent_tools.guest.wire.messages import MessageReader
from agent_tools.guest.wire.sockets import await_input, await_room
from agent_tools.guest.wire.words import NO_COPY, Exit, Failed, Marked, Printed, Report
from agent_tools.limits import MIB
from agent_tools.runtime.kernel.escalation import Broken, Disconnected, Reported, SandboxEnded
from agent_tools.runtime.kernel.protocol import KernelMessage, execute_request, read_message, shutdown_request
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.text import neutralise

CHUNK_BYTES = 64 * 1024
SEND_SECONDS = 10.0  # seconds for which a kernel may read nothing of a request
LOOK_SECONDS = 0.1  # seconds between two checks whether a request is still to be sent
SLOWEST = MIB // 2  # bytes of a request that it must read in a second, on the average
LAST_BYTES = 4 * MIB  # bytes that a kernel may have sent before its reported end: more than can be in transit
LAST_SECONDS = 0.5  # seconds that they may be in transit over stdio
MAX_REPORTS_AT_ONCE = 16  # lines of a PID 1 that may never stop sending


@dataclass(frozen=True)
class Arrived:
    """The kernel sent a message: as a value, and as raw parts."""

    message: KernelMessage
    parts: list[bytes]


Event = Union[Arrived, Reported, SandboxEnded, Broken, Disconnected]


AT_LIMIT = ", at its memory limit: raise `memory`, or preload less"


class NoCheckpoint(KernelDied):
    """There is no copy of the kernel that could continue. Its text is the guest's code for the reason."""


class KernelChannel:
    """Owns the socket of one kernel, with its generation. Used by one thread at a time."""

    def __init__(self, connected: socket.socket, lifeline: Lifeline, generation: int, max_message_bytes: int) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._lifeline = lifeline
        self._generation = generation
        self._reader = MessageReader(max_message_bytes)
        self._poller = select.poll()
        self._poller.register(connected, select.POLLIN)
        self._poller.register(lifeline, select.POLLIN)
        self._lifeline_fd = lifeline.fileno()
        self._has_more = False  # a message may be in the reader already
        self._bytes_read = 0
        self._is_open = True
        self._has_told_end = False
        self._reports = deque[Event]()  # that are not yielded yet: the caller may stop at any message

    def await_kernel(self, deadline: float, *, passes_over_text: bool = False) -> KernelMessage:
        """Wait for the kernel's first message, which says that it is ready, and return it.

        A kernel that continues from a checkpoint may print something first, which is skipped.

        Raises:
            NoCheckpoint: there is no checkpoint that could continue as the kernel.
            KernelDied: it ended, could not start, or sent nothing before the deadline.
        """
        while time.monotonic() < deadline:
            for event in self.receive(deadline - time.monotonic()):
                match event:
                    case Arrived(message, _) if passes_over_text and message.kind == "stream":
                        continue
                    case Arrived(message, _):
                        return message
                    case Broken(reason):
                        raise KernelDied(f"it sent {reason} at its start")
                    case Reported(Failed(_, traceback)) if traceback.startswith(NO_COPY):
                        raise NoCheckpoint(traceback.removeprefix(NO_COPY).strip())
                    case Reported(Failed(_, traceback)):
                        raise KernelDied(f"it failed to start: {neutralise(traceback)}")
                    case Reported(Exit(oom=oom)):
                        raise KernelDied(f"it ended at its start{AT_LIMIT if oom else ''}")
                    case SandboxEnded():
                        raise KernelDied("the sandbox ended before its kernel was ready")
        raise KernelDied("it did not become ready in time")

    def send_execute(
        self,
        code: str,
        timeout: float,
        *,
        is_silent: bool = False,
        run: int = 0,
        is_urgent: bool = False,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> str:
        """Send the kernel code to run; return the request's id. Arguments as for `execute_request` and `send`."""
        request_id, data = execute_request(code, timeout, is_silent=is_silent, run=run, is_urgent=is_urgent)
        self.send(data, goes_on)
        return request_id

    def send_shutdown(self) -> str:
        """Ask the kernel to finish as a program does; return the request's id."""
        request_id, data = shutdown_request()
        self.send(data)
        return request_id

    def filenos(self) -> list[int]:
        """Return the descriptors to poll for reading."""
        return [each for each in (self._socket.fileno(), self._lifeline.fileno()) if each >= 0]

    def send(self, data: bytes, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Send all the bytes; if the kernel is gone or does not read, a later read sees the channel as closed.

        `goes_on` is asked at least every LOOK_SECONDS while the kernel reads slowly; if it returns False, the channel
        is closed, too.
        """
        deadline = time.monotonic() + SEND_SECONDS
        last = deadline + len(data) / SLOWEST
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and self._is_open:
                if sent := self._write(view):
                    view = view[sent:]
                    deadline = min(last, time.monotonic() + SEND_SECONDS)
                if not view:
                    return
                left = deadline - time.monotonic()
                has_room = await_room(self._socket.fileno(), min(LOOK_SECONDS, left))
                if not goes_on() or (not has_room and left <= LOOK_SECONDS):
                    self._hang_up()
                    return

    def _write(self, view: memoryview) -> int:
        """Send what there is room for; return how many bytes that were."""
        try:
            return self._socket.send(view)
        except BlockingIOError:
            return 0

    def receive(self, wait: float) -> Iterator[Event]:
        """Wait up to `wait` seconds for an event, and yield all events that are available.

        The end of the kernel, or of its sandbox, comes after all messages that the kernel had sent.
        """
        ready = self._poll(wait)
        if self._has_more or self._socket.fileno() in ready:
            yield from self._take_messages()
        if self._lifeline_fd in ready:
            self._reports += self._take_reports()
        if any(map(_comes_after_messages, self._reports)):
            yield from self._take_last_messages()
        while self._reports:
            yield self._reports.popleft()

    def close(self) -> None:
        """Hang up."""
        if self._is_open:
            self._stop_reading()

    def _poll(self, wait: float) -> set[int]:
        """Return the descriptors that have something, after at most `wait` seconds."""
        wait = 0 if self._has_more or self._reports else max(0.0, wait)
        return {descriptor for descriptor, _ in self._poller.poll(wait * 1000)}

    def _take_messages(self) -> Iterator[Event]:
        """Yield the available messages."""
        try:
            data = self._read()
            self._has_more = True  # until all are taken: the caller may stop at any message
            for channel, parts in self._reader.feed(data or b""):
                yield Arrived(read_message(channel, parts), parts)
            self._has_more = False
        except (FrameError, ProtocolViolation) as exc:
            self._stop_reading()  # the stream cannot be resynchronised, and nothing more is needed
            yield Broken(str(exc))
            return
        if data is not None and not data:
            self._stop_reading()
            yield Disconnected()

    def _take_last_messages(self) -> Iterator[Event]:
        """Read the rest of the kernel's stream, with a time limit: another process may still write."""
        most, deadline = self._bytes_read + LAST_BYTES, time.monotonic() + LAST_SECONDS
        while self._is_open and self._bytes_read < most:
            if not await_input(self._socket.fileno(), deadline - time.monotonic()):
                break
            yield from self._take_messages()

    def _read(self) -> bytes | None:
        """Read available bytes; b'' at the end, None if there are none."""
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self._bytes_read += len(data)
        return data

    def _stop_reading(self) -> None:
        self._is_open = self._has_more = False
        self._poller.unregister(self._socket)
        self._socket.close()

    def _take_reports(self) -> list[Event]:
        reports = self._lifeline.receive(MAX_REPORTS_AT_ONCE)
        events: list[Event] = [Reported(report) for report in reports if self._is_about_it(report)]
        if self._lifeline.has_ended and not self._has_told_end:
            self._has_told_end = True
            self._poller.unregister(self._lifeline_fd)
            events.append(SandboxEnded())
        return events

    def _is_about_it(self, report: Report) -> bool:
        """Return whether a report is about this kernel: reports on an earlier one may come late."""
        return isinstance(report, (Exit, Failed, Marked, Printed)) and report.generation == self._generation

    def _hang_up(self) -> None:
        """Shut the socket down, so that reading it tells of its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _comes_after_messages(event: Event) -> bool:
    """Return whether a report is about the end of the kernel, which comes after all its messages."""
    return isinstance(event, SandboxEnded) or (
        isinstance(event, Reported) and isinstance(event.report, (Printed, Exit))
    )
