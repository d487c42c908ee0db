"""When the processes of an idle sandbox are stopped, and what wakes them; on a clock of the test's own."""

from __future__ import annotations

from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.machine.rounds import rounds
from agent_tools.runtime.sandbox.idle_stop import IdleStop


class Watched:
    """An idle stop of ten seconds, looked at by the test."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.now, self.is_busy = 0.0, False
        self.orders: list[Pause | Resume] = []
        self.idle = IdleStop(seconds, self.orders.append, lambda: self.is_busy, lambda: self.now)

    def check(self, at: float) -> None:
        self.now = at
        if self.idle.is_due():
            self.idle.check()


def test_it_stops_once_after_so_long_without_use() -> None:
    watched = Watched()
    watched.check(9.9)
    assert watched.orders == []
    watched.check(10.0)
    watched.check(100.0)
    assert watched.orders == [Pause()]
    assert watched.idle.is_stopped


def test_a_use_wakes_it_and_is_never_cut_short() -> None:
    watched = Watched()
    watched.check(10.0)
    with watched.idle.use(), watched.idle.use():
        assert watched.orders == [Pause(), Resume()]
        watched.check(1_000.0)
    assert watched.orders == [Pause(), Resume()]
    watched.check(1_009.9)
    assert watched.orders == [Pause(), Resume()]
    watched.check(1_010.0)
    assert watched.orders == [Pause(), Resume(), Pause()]
    watched.idle.close()


def test_a_use_that_begins_when_it_was_found_due_keeps_it_going() -> None:
    watched = Watched()
    watched.now = 10.0
    assert watched.idle.is_due()
    with watched.idle.use():
        watched.idle.check()
    assert watched.orders == []
    watched.idle.close()


def test_what_goes_on_beside_it_counts_as_use() -> None:
    watched = Watched()
    watched.is_busy = True
    watched.check(100.0)
    watched.is_busy = False
    watched.check(109.9)
    assert watched.orders == []
    watched.check(110.0)
    assert watched.orders == [Pause()]


def test_it_is_watched_from_its_first_use_until_it_is_closed() -> None:
    watched, before = Watched(), rounds().count
    with watched.idle.use():
        pass
    assert rounds().count == before + 1
    watched.idle.close()
    assert rounds().count == before
    watched.check(100.0)
    assert watched.orders == []


def test_without_a_time_nothing_is_watched() -> None:
    watched, before = Watched(0.0), rounds().count
    with watched.idle.use():
        pass
    assert rounds().count == before
    watched.idle.close()
