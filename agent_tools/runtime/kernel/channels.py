"""One kernel's shell and iopub channels and the lifeline beside them, read as one sequence of events."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from agent_tools.errors import KernelDied, ProtocolViolation
from agent_tools.runtime.kernel.protocol import Message, read_message, wire_session
from agent_tools.runtime.kernel.zmtp import ZmtpSocket
from agent_tools.runtime.transport.lifeline import Link

WELCOME_SECONDS = 0.05  # silence after which a starting kernel is asked for a sign of life
DISCARD_SECONDS = 0.25  # how long output of threads left running is dropped before a new run starts anyway
MAX_WORDS_AT_ONCE = 16  # datagrams of a PID 1 that may never stop talking


@dataclass(frozen=True)
class FromShell:
    """A message on the shell channel."""

    message: Message


@dataclass(frozen=True)
class FromIopub:
    """A message on the iopub channel."""

    message: Message


@dataclass(frozen=True)
class Words:
    """What PID 1 said; [] when it hung up."""

    words: list[str]


@dataclass(frozen=True)
class Broken:
    """The kernel broke the protocol, or a limit of it. `reason` continues 'it sent'."""

    reason: str


@dataclass(frozen=True)
class Disconnected:
    """The kernel closed a channel: it ended, or is about to."""


Event = Union[FromShell, FromIopub, Words, Broken, Disconnected]


class Channels:
    """Used by one thread at a time."""

    def __init__(self, key: bytes, shell: ZmtpSocket, iopub: ZmtpSocket, link: Link) -> None:
        self._session = wire_session(key)
        self._shell = shell
        self._iopub = iopub
        self._link = link
        self._told: list[ZmtpSocket] = []

    def await_welcome(self, deadline: float) -> None:
        """Wait until the kernel has seen our subscription; any iopub message proves it. Then no output can be missed.

        It says welcome by itself (JEP 65) unless it happens to be sending at that moment; hence it is also asked.

        Raises:
            KernelDied: it ended or said nothing before the deadline.
        """
        while time.monotonic() < deadline:
            events = list(self.receive(min(WELCOME_SECONDS, deadline - time.monotonic())))
            if not events:
                self._send("kernel_info_request", {}, {})
            for event in events:
                match event:
                    case FromIopub():
                        return
                    case Broken(reason):
                        raise KernelDied(f"it sent {reason} at its start")
                    case Words([] | ["exit", *_]) | Disconnected():
                        raise KernelDied("it ended at its start")
        raise KernelDied("it did not become ready in time")

    def send_execute(self, code: str, timeout: float, *, is_silent: bool = False) -> str:
        """Ask the kernel to run code; return the request's id. The guest's countdown reads `timeout` (metadata)."""
        content = {
            "code": code,
            "silent": is_silent,
            "store_history": not is_silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return self._send("execute_request", content, {"timeout": timeout})

    def receive(self, wait: float) -> Iterator[Event]:
        """What arrives within `wait` seconds: nothing, or all that is there when the first thing is, one by one."""
        ready = self._poll(wait)
        if self._link.fileno() in ready:
            yield from self._take_words()
        for channel, kind in ((self._iopub, FromIopub), (self._shell, FromShell)):
            if channel.fileno() in ready:
                yield from self._take(channel, kind)
        yield from self._tell_closed()

    def discard(self) -> list[Event]:
        """Drop what came in between runs, unread; return what concerns the kernel itself."""
        deadline = time.monotonic() + DISCARD_SECONDS
        events: list[Event] = []
        while time.monotonic() < deadline and (ready := self._poll(0)):
            if self._link.fileno() in ready:
                events += self._take_words()
            for channel in (self._iopub, self._shell):
                if channel.fileno() in ready:
                    events += self._skip(channel)
            events += self._tell_closed()
            if events:
                break
        return events

    def close(self) -> None:
        """Hang up."""
        self._shell.close()
        self._iopub.close()

    def _send(self, kind: str, content: dict[str, object], metadata: dict[str, object]) -> str:
        message = self._session.msg(kind, content, metadata=metadata)
        self._shell.send(self._session.serialize(message))
        return str(message["header"]["msg_id"])

    def _poll(self, wait: float) -> set[int]:
        """The descriptors that have something, after at most `wait` seconds."""
        poller = select.poll()
        open_channels = [channel for channel in (self._shell, self._iopub) if not channel.is_closed]
        for channel in open_channels:
            poller.register(channel.fileno(), select.POLLIN)
        if self._link.is_open:
            poller.register(self._link.fileno(), select.POLLIN)
        waiting = {channel.fileno() for channel in open_channels if channel.has_more}
        is_urgent = waiting or len(open_channels) + len(self._told) < 2
        return waiting | {fd for fd, _ in poller.poll(0 if is_urgent else max(0.0, wait) * 1000)}

    def _take(self, channel: ZmtpSocket, kind: type[FromShell] | type[FromIopub]) -> Iterator[Event]:
        try:
            for frames in channel.receive():
                yield kind(read_message(self._session, frames))
        except ProtocolViolation as exc:
            channel.close()  # there is no way back into step, and nothing more is wanted
            yield Broken(str(exc))

    def _skip(self, channel: ZmtpSocket) -> list[Event]:
        try:
            channel.skip()
        except ProtocolViolation as exc:
            channel.close()
            return [Broken(str(exc))]
        return []

    def _tell_closed(self) -> Iterator[Event]:
        """Tell once of each channel that was closed, by whomever and whenever."""
        for channel in (self._iopub, self._shell):
            if channel.is_closed and channel not in self._told:
                self._told.append(channel)
                yield Disconnected()

    def _take_words(self) -> list[Event]:
        events: list[Event] = []
        for _ in range(MAX_WORDS_AT_ONCE):
            if (words := self._link.receive()) is None:
                break
            events.append(Words(words))
            if not words:
                break
        return events
