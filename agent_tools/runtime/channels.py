"""One kernel's shell and iopub sockets and the lifeline beside them, read as one sequence of events.

Every socket is bounded: no message above the limit enters this process, few are queued, and a connection that libzmq
drops for that reason stays dropped and is reported.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Any, Union

import zmq
from jupyter_client.session import Session
from zmq.utils.monitor import recv_monitor_message

from agent_tools.errors import KernelDied, ProtocolViolation
from agent_tools.runtime.connection import Connection
from agent_tools.runtime.link import Link
from agent_tools.runtime.protocol import Message, read_message
from agent_tools.settings import Limits

QUEUED_MESSAGES = 2  # per socket, above what the kernel holds back; times the message limit this is the memory at stake
WELCOME_SECONDS = 0.05  # silence after which a starting kernel is asked for a sign of life
BATCH = 64  # messages taken from one socket before looking at the others


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
    """A socket's connection went away: the kernel ended, or libzmq refused a message over the size limit."""


Event = Union[FromShell, FromIopub, Words, Broken, Disconnected]


class Channels:
    """Used by one thread at a time."""

    def __init__(self, connection: Connection, link: Link, limits: Limits) -> None:
        self._session = Session(key=connection.key)
        self._link = link
        self._limits = limits
        self._poller = zmq.Poller()
        self._sockets: list[zmq.Socket[Any]] = []
        self._shell = self._connect(zmq.DEALER, connection.shell)
        self._iopub = self._connect(zmq.SUB, connection.iopub)
        self._iopub.setsockopt(zmq.SUBSCRIBE, b"")
        self._poller.register(link.fileno(), zmq.POLLIN)

    def await_welcome(self, deadline: float) -> None:
        """Wait until the kernel has seen our subscription; any iopub message proves it. Then no output can be missed.

        It says welcome by itself (JEP 65) unless it happens to be sending at that moment; hence it is also asked.

        Raises:
            KernelDied: it ended or said nothing before the deadline.
        """
        while time.monotonic() < deadline:
            events = self.receive(min(WELCOME_SECONDS, deadline - time.monotonic()))
            if not events:
                self._session.send(self._shell, "kernel_info_request", {})
            for event in events:
                match event:
                    case FromIopub():
                        return
                    case Broken(reason):
                        raise KernelDied(f"it sent {reason} at its start")
                    case Words([] | ["exit", *_]) | Disconnected():
                        raise KernelDied("it ended at its start")
        raise KernelDied("it did not become ready in time")

    def send_execute(self, code: str, timeout: float) -> str:
        """Ask the kernel to run code; return the request's id. The guest's countdown reads `timeout` (metadata)."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        sent = self._session.send(self._shell, "execute_request", content, metadata={"timeout": timeout})
        return str(sent["header"]["msg_id"])

    def receive(self, wait: float) -> list[Event]:
        """What arrives within `wait` seconds: nothing, or all that is ready when the first thing is."""
        ready = dict(self._poller.poll(math.ceil(max(0.0, wait) * 1000)))
        events: list[Event] = []
        if self._iopub in ready:
            events += self._take(self._iopub, FromIopub)
        if self._shell in ready:
            events += self._take(self._shell, FromShell)
        if self._link.fileno() in ready:
            events += self._take_words()
        events += [
            event for monitor in self._sockets[1::2] if monitor in ready for event in self._take_monitor(monitor)
        ]
        return events

    def discard(self) -> list[Event]:
        """Drop what came in between calls (output of threads left running); return what concerns the kernel itself."""
        kept: list[Event] = []
        for _ in range(1024):
            events = self.receive(0)
            kept += [event for event in events if not isinstance(event, (FromShell, FromIopub))]
            if not events or any(isinstance(event, Words) and not event.words for event in events):
                break
        return kept

    def close(self) -> None:
        """Close the sockets; nothing is waited for."""
        for socket, monitor in zip(self._sockets[::2], self._sockets[1::2]):
            with contextlib.suppress(zmq.ZMQError):
                socket.disable_monitor()  # first: libzmq waits for ever to report to a monitor that is gone
                monitor.close(linger=0)
                socket.close(linger=0)
        self._sockets.clear()

    def _connect(self, kind: int, address: str) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = zmq.Context.instance().socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.max_message_bytes)
        socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._sockets += [socket, monitor]
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        socket.connect(address)
        return socket

    def _take(self, socket: zmq.Socket[Any], kind: type[FromShell] | type[FromIopub]) -> list[Event]:
        events: list[Event] = []
        size = 0
        with contextlib.suppress(zmq.Again):
            while len(events) < BATCH and size < self._limits.max_message_bytes:
                frames = socket.recv_multipart(zmq.NOBLOCK)
                size += sum(map(len, frames))
                try:
                    events.append(kind(read_message(self._session, frames)))
                except ProtocolViolation as exc:
                    return [*events, Broken(str(exc))]
        return events

    def _take_words(self) -> list[Event]:
        events: list[Event] = []
        while len(events) < BATCH and (words := self._link.receive()) is not None:
            events.append(Words(words))
            if not words:
                self._poller.unregister(self._link.fileno())
                break
        return events

    def _take_monitor(self, monitor: zmq.Socket[Any]) -> list[Event]:
        recv_monitor_message(monitor)
        return [Disconnected()]
