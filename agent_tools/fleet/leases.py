"""The leases of a process: one thread tells each host, from time to time, which sessions are still wanted."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from agent_tools.fleet.limits import LIMITS
from agent_tools.fleet.links import HostGone, HostLink
from agent_tools.runtime.threads.background import begun, do_all

log = logging.getLogger("agent_tools.fleet")


class Leased(Protocol):
    """Something that a host keeps as long as its lease is renewed."""

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host that has it, and its id there; None while no host has it."""
        ...

    def note_lost(self, id_: str, why: str) -> None:
        """The host does not have what had this id there; `why` is a clause."""
        ...


class Leases:
    """Begins with the first call of `begin`. `leased` gives all that is to be kept now."""

    def __init__(self, seconds: float, leased: Callable[[], Iterable[Leased]]) -> None:
        self._seconds = seconds
        self._leased = leased
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Renew from now on."""
        with self._lock:
            is_going_on = self._thread is not None and self._thread.is_alive()  # in a forked child it is not
            if not is_going_on and not self._is_over.is_set():
                self._thread = begun(self._go_on, "agent-tools-leases")

    def end(self) -> None:
        """Renew no more."""
        self._is_over.set()

    def renew(self) -> None:
        """Renew all once, several hosts at once: one that does not answer holds up no other."""
        by_host: defaultdict[str, list[tuple[HostLink, str, Leased]]] = defaultdict(list)
        for each in self._leased():
            if place := each.place:
                by_host[place[0].name].append((*place, each))
        do_all(partial(self._renew, entries) for entries in by_host.values())

    def _go_on(self) -> None:
        while not self._is_over.wait(self._seconds / LIMITS.renewals):
            self._renew_surely()

    def _renew_surely(self) -> None:
        try:
            self.renew()
        except Exception as exc:  # noqa: BLE001  (the next round is to come, whatever became of this one)
            log.warning("leases could not be renewed: %r", exc)

    def _renew(self, entries: list[tuple[HostLink, str, Leased]]) -> None:
        by_id = {id_: leased for _, id_, leased in entries}
        try:
            missing = entries[0][0].call("renew", list(by_id), seconds=self._seconds / 2)
        except HostGone as exc:
            if exc.is_final:
                for id_, leased in by_id.items():
                    leased.note_lost(id_, "the machine that ran it is gone")
            return
        except Exception as exc:  # noqa: BLE001  (whatever one host fails at: the others, and the next round, go on)
            log.warning("the host %s did not renew its leases: %r", entries[0][0].name, exc)
            return
        for id_ in missing:
            if id_ in by_id:
                by_id[id_].note_lost(id_, "the machine that ran it has closed it")
