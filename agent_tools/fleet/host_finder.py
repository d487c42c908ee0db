"""The way from a session to the host that has it: found at the first use, and anew once it is lost.

A message is sent once. One that is not answered has lost the session, since nobody knows what became of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

from agent_tools.errors import EngineError, HostFull, SessionClosed, SessionLost
from agent_tools.fleet.protocol import (
    CLOSE_SECONDS,
    SEND_SECONDS,
    HostLink,
    HostUnreachable,
    RemoteSpec,
    SessionUnknown,
)
from agent_tools.results.execution import Restarted

LOOK_SECONDS = 0.2  # between two tries
READING = ("get_piece",)
"""Methods that follow code that was run."""
_CLOSED_MEANWHILE = "The session was closed while its code ran."

Open = Callable[[str, RemoteSpec], HostLink]
"""Has a host open a session of this id; returns the host."""


class HostFinder:
    """Any thread may call any method. `open_` finds a host, `pass_over` is told of one that does not answer.

    Attributes:
        remote: the makings of the session on its next host.
        at_new: is called when another host has it.
    """

    def __init__(
        self,
        remote: RemoteSpec,
        open_: Open,
        pass_over: Callable[[HostLink], object],
        at_new: Callable[[], object],
    ) -> None:
        self.remote = remote
        self._open, self._pass_over, self._at_new = open_, pass_over, at_new
        self._opening = threading.RLock()  # held as long as a host takes to open it
        self._lock = threading.Lock()  # around what is known; never held for long, since renewals of others wait for it
        self._place: tuple[HostLink, str] | None = None
        self._lost: Restarted | None = None
        self._owner_pid = os.getpid()
        self.is_closed = False

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host that has the session, and its id there."""
        return None if self.is_closed or os.getpid() != self._owner_pid else self._place

    def placed(self) -> tuple[HostLink, str]:
        """Return the host that has the session; one is found if there is none.

        Raises:
            HostFull: all hosts are full.
            EngineError: no host answers, or the sandbox could not be started.
            SessionClosed: the session was closed meanwhile.
        """
        with self._opening:
            if place := self._place:
                return place
            id_ = uuid.uuid4().hex
            link = self._open(id_, self.remote)
            with self._lock:
                self._place = link, id_
            if self.is_closed:
                self._close_at(link, id_)
                self.refuse_closed()
            self._at_new()
            return link, id_

    def note_lost(self, id_: str, why: str) -> None:
        """The host does not have the session of this id any more: the next use finds another one, and tells.

        Word of one that has been followed by another already changes nothing.
        """
        with self._lock:
            if self._place is not None and self._place[1] == id_:
                self._place, self._lost = None, Restarted(why)

    def take_lost(self) -> Restarted | None:
        """Return what is to be told of a host that was lost, once."""
        with self._lock:
            lost, self._lost = self._lost, None
        return lost

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the host for this session.

        Raises:
            SessionLost: it is gone, or has closed the session.
            SessionClosed: the session was closed, before or meanwhile.
        """
        self.refuse_closed()
        link, id_ = self.placed()
        with self._losing(link, id_):
            if method in READING:
                return self._sent(link, method, id_, *arguments)
            return link.call(method, id_, *arguments)

    def follow(self, what: str, run: str, *arguments: Any) -> Generator[Any, None, None]:
        """Yield the items of something that goes on at the host. Errors as for `ask`."""
        self.refuse_closed()
        link, id_ = self.placed()
        is_over = False
        try:
            with self._losing(link, id_):
                items, is_over = link.call("begin", id_, run, what, *arguments)
            yield from items
            while not is_over:
                with self._losing(link, id_):
                    items, is_over = self._sent(link, "more", id_, run)
                yield from items
        finally:
            if not is_over:
                link.tell("drop", id_, run)

    def _sent(self, link: HostLink, method: str, *arguments: Any) -> Any:
        """Call a method in the middle of something: where no message can be sent now, it is sent a little later."""
        until = time.monotonic() + SEND_SECONDS
        while True:
            try:
                return link.call(method, *arguments)
            except HostFull as exc:
                self.refuse_closed_meanwhile()
                if time.monotonic() > until:
                    raise HostUnreachable(f"the host {link.name} takes no messages of this process") from exc
            time.sleep(LOOK_SECONDS)

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the host, if there is one, and wait for nothing."""
        if place := self._place:
            place[0].tell(method, place[1], *arguments)

    def close(self) -> bool:
        """End the session on its host; return whether it was open. In a forked child nothing happens."""
        if self.is_closed or os.getpid() != self._owner_pid:
            return False
        self.is_closed = True
        if place := self._place:
            self._close_at(*place)
        return True

    def _close_at(self, link: HostLink, id_: str) -> None:
        with contextlib.suppress(HostUnreachable, EngineError):  # its lease ends, then
            link.call("close", id_, seconds=CLOSE_SECONDS)

    def refuse_closed(self, message: str = "The session is closed.") -> None:
        """Raise SessionClosed if it is."""
        if self.is_closed or os.getpid() != self._owner_pid:
            raise SessionClosed(message)

    def refuse_closed_meanwhile(self) -> None:
        """Raise SessionClosed if it was closed while code ran."""
        self.refuse_closed(_CLOSED_MEANWHILE)

    @contextlib.contextmanager
    def _losing(self, link: HostLink, id_: str) -> Iterator[None]:
        """Around what a host does: one that is gone has lost the session."""
        try:
            yield
        except HostUnreachable as exc:
            self.refuse_closed_meanwhile()
            self._pass_over(link)
            self.note_lost(id_, "the machine that ran it is gone")
            raise SessionLost(
                "The machine that ran it is gone. Variables are lost, and so is what this call wrote; whether the code "
                "ran to its end is not known. The next call starts on another machine."
            ) from exc
        except SessionUnknown as exc:
            self.refuse_closed_meanwhile()
            self.note_lost(id_, "the machine that ran it has closed it")
            raise SessionLost(
                "The machine that ran it has closed the session. Variables are lost; nothing was run. The next call "
                "starts anew."
            ) from exc
        except EngineError:
            self.refuse_closed_meanwhile()
            raise
