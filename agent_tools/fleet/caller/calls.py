"""The caller's half of host calls: a kernel's socket in the place of the one that is on another machine.

`HostCalls` hears what the code asks, and answers, as for a kernel beside it; the words come with the outputs of a run,
and the answers go to the host as numbered orders (host/relay.py).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

from agent_tools.fleet.crossing import GuestWord
from agent_tools.fleet.links import HostLink
from agent_tools.guest.wire.frames import Screen
from agent_tools.runtime.host_calls.wire import MAX_UNREAD, Take


class FarWire:
    """The wire of one run, as `HostCalls` uses a `CallWire`, and its clock. For any thread."""

    def __init__(self, link: HostLink, id_: str, run: str) -> None:
        self._link, self._id, self._run = link, id_, run
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._is_wanted = True
        self._given = self._taken = 0  # bytes of answers: sent, and known to be taken
        self._begin: Callable[[], asyncio.AbstractEventLoop]
        self._take: Take
        self._screen: Screen | None = None

    def start(self, begin: Callable[[], asyncio.AbstractEventLoop], take: Take, screen: Screen | None = None) -> None:
        """Give every word of the code that `screen` wants to `take`, in the loop that `begin` gives."""
        self._begin, self._take, self._screen = begin, take, screen

    def hear(self, word: GuestWord) -> None:
        """Take a word that came with the outputs."""
        self._begin().call_soon_threadsafe(self._heard, word)

    def _heard(self, word: GuestWord) -> None:
        match word.head:
            case {"op": "call", "id": int(number), "name": str(name)}:
                if self._screen and not self._screen(number, name, word.size):
                    return
            case {"op": "taken", "bytes": int(count)}:
                self._taken = max(self._taken, count)
                return
        self._take(dict(word.head), word.attachments, word.size)

    @property
    def is_crowded(self) -> bool:
        """True while the host has not said that enough of the answers was taken."""
        return self._given - self._taken > MAX_UNREAD

    def send(self, data: bytes) -> None:
        """Send the code an answer."""
        with self._lock:
            self._given += len(data)
        self._order("answer", bytes(data))

    def read_on(self, wanted: bool) -> None:
        """Have the host read on what the code sends, or leave it there for now."""
        if wanted != self._is_wanted:
            self._is_wanted = wanted
            self._order("read_on", wanted)

    def hold(self) -> None:
        """Let the run's time limit stand still."""
        self._order("hold", None)

    def go(self) -> None:
        """Let the run's time limit go on."""
        self._order("go", None)

    def close(self) -> None:
        """Nothing: the host hangs up by itself."""

    def _order(self, what: str, data: Any) -> None:
        with self._lock:
            self._link.tell("order", self._id, self._run, next(self._numbers), what, data)
