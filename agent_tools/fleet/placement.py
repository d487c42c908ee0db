"""The choice of a host: the emptier one of two at random, past those that are full or do not answer.

Two asked at random come close to asking all (the power of two choices), so nobody lists who holds what. A host
that did not answer is passed over for a while: whoever watches the cluster says much later that it is dead.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from agent_tools.errors import EngineUnavailable, HostFull
from agent_tools.fleet.crossing import Load
from agent_tools.fleet.limits import ASK_SECONDS, SKIP_SECONDS, WAIT_SECONDS
from agent_tools.fleet.links import HostGone, HostLink, Hosts
from agent_tools.machine.background import do_all
from agent_tools.version import __version__

_FULL = "All hosts that answer are full"
_SEE = "`agent-tools fleet status` shows the nodes"
LOOK_SECONDS = 0.2  # between two looks at hosts that were all full

Opened = TypeVar("Opened")


class Placement:
    """Thread-safe. `clock` gives seconds, `wait` spends them."""

    def __init__(
        self,
        hosts: Hosts,
        patience: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._hosts, self._patience, self._clock, self._wait = hosts, patience, clock, wait
        self._passed_over: dict[str, float] = {}
        self._greeted: set[str] = set()
        self._lock = threading.Lock()

    def place(self, open_: Callable[[HostLink], Opened]) -> tuple[HostLink, Opened]:
        """Have a host open something, at most once on each try; return the host and what `open_` gave.

        Raises:
            HostFull: all hosts are full, for as long as the patience lasts.
            EngineUnavailable: there is no host that answers.
        """
        until = self._clock() + self._patience
        while True:
            problems: list[str] = []
            for link in self._in_turn(problems):
                with self._problems(link, problems):
                    return link, open_(link)
            if self._clock() >= until:
                self._fail(problems)
            self._wait(LOOK_SECONDS)

    @contextlib.contextmanager
    def _problems(self, link: HostLink, problems: list[str]) -> Iterator[None]:
        """Around a try: a host that is full, or does not answer, makes way for the next one."""
        try:
            yield
        except HostFull as exc:
            problems.insert(0, f"{_FULL}; of one: {exc}")
        except HostGone as exc:
            self.pass_over(link)
            problems.append(str(exc))

    def pass_over(self, link: HostLink) -> None:
        """Ask a host that did not answer only where there is no other, for a while."""
        with self._lock:
            self._passed_over[link.name] = self._clock() + SKIP_SECONDS
            self._greeted.discard(link.name)

    def loads(self) -> dict[str, Load]:
        """Return all hosts that answer, by name, in numbers; several are asked at once."""
        loads: dict[str, Load] = {}

        def ask(link: HostLink) -> None:
            if load := self._load(link, []):
                loads[link.name] = load

        do_all(partial(ask, link) for link in self._hosts.links())
        return loads

    def links(self) -> list[HostLink]:
        """Return the hosts to ask: those that answered as far as is known, else all. Raises EngineUnavailable."""
        links = list(self._hosts.links())
        if not links:
            return links
        with self._lock:
            now = self._clock()
            answering = [link for link in links if self._passed_over.get(link.name, 0.0) <= now]
        return answering or links

    def greet(self, link: HostLink) -> None:
        """Make sure that a host is of our release. Raises EngineError: it is not; HostGone: it does not answer."""
        if link.name not in self._greeted:
            link.call("greet", __version__)
            with self._lock:
                self._greeted.add(link.name)

    def _in_turn(self, problems: list[str]) -> list[HostLink]:
        """Return two hosts at random, the emptier one first, and then the others."""
        links = self.links()
        random.shuffle(links)
        two, others = links[:2], links[2:]
        return self._emptier_first(two, problems) + others

    def _emptier_first(self, two: Sequence[HostLink], problems: list[str]) -> list[HostLink]:
        if len(two) < 2:
            return list(two)
        loads = [(load.share, index) for index, link in enumerate(two) if (load := self._load(link, problems))]
        return [two[index] for _, index in sorted(loads)]

    def _load(self, link: HostLink, problems: list[str]) -> Load | None:
        try:
            self.greet(link)
            load: Load = link.call("load", seconds=ASK_SECONDS)
        except HostGone as exc:
            self.pass_over(link)
            problems.append(str(exc))
            return None
        with self._lock:
            self._passed_over.pop(link.name, None)
        return load

    def _fail(self, problems: Sequence[str]) -> NoReturn:
        if problems and problems[0].startswith(_FULL):
            raise HostFull(f"{problems[0]} Waited {self._patience:g} s (patience). Close sessions, or add nodes.")
        raise EngineUnavailable(problems[0] if problems else f"There is no host for sandboxes; {_SEE}.")
