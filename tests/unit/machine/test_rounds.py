"""The checks of many sandboxes: in few threads, and none held up by another."""

from __future__ import annotations

import os
import threading
import time

import pytest

from agent_tools.machine.rounds import LINGER_SECONDS, MOST_CHECKERS, Rounds, rounds
from tests.waiting import until

FOREVER = 20.0  # seconds: only a failing test waits this long


class Thing:
    """Due always. Its check counts itself, and lasts until `may_end`."""

    def __init__(self, *, may_end: bool = True) -> None:
        self.checks = 0
        self.is_looked_at = threading.Event()
        self.may_end = threading.Event()
        if may_end:
            self.may_end.set()

    def is_due(self) -> bool:
        return True

    def check(self) -> None:
        self.checks += 1
        self.is_looked_at.set()
        assert self.may_end.wait(FOREVER)


def threads() -> int:
    return sum(each.name in ("agent-tools-rounds", "agent-tools-checks") for each in threading.enumerate())


def test_a_thousand_are_looked_at_again_and_again_in_few_threads() -> None:
    watching, things, before = Rounds(0.01), [Thing() for _ in range(1000)], threads()
    for each in things:
        watching.add(each)
    assert watching.count == 1000
    until(lambda: all(each.checks > 1 for each in things))
    assert threads() - before <= 1 + MOST_CHECKERS
    for each in things:
        watching.remove(each)
    until(lambda: threads() <= before)


def test_a_look_that_takes_long_delays_no_other() -> None:
    watching, slow, quick = Rounds(0.01), [Thing(may_end=False) for _ in range(MOST_CHECKERS - 1)], Thing()
    for each in (*slow, quick):
        watching.add(each)
    assert all(each.is_looked_at.wait(FOREVER) for each in slow)
    seen = quick.checks
    until(lambda: quick.checks > seen + 3)
    assert [each.checks for each in slow] == [1] * len(slow)
    for each in (*slow, quick):
        each.may_end.set()
        watching.remove(each)


def test_a_look_that_is_under_way_is_over_when_its_thing_is_removed() -> None:
    watching, thing = Rounds(0.01), Thing(may_end=False)
    watching.add(thing)
    assert thing.is_looked_at.wait(FOREVER)
    removing = threading.Thread(target=watching.remove, args=(thing,))
    removing.start()
    removing.join(0.1)
    assert removing.is_alive()
    thing.may_end.set()
    removing.join(FOREVER)
    assert not removing.is_alive()
    assert thing.checks == 1


def test_a_look_that_hangs_does_not_keep_a_removal_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.machine.rounds.REMOVE_SECONDS", 0.05)
    watching, thing = Rounds(0.01), Thing(may_end=False)
    watching.add(thing)
    assert thing.is_looked_at.wait(FOREVER)
    removing = threading.Thread(target=watching.remove, args=(thing,), daemon=True)
    removing.start()
    removing.join(FOREVER)
    assert not removing.is_alive()
    thing.may_end.set()
    until(lambda: watching.cost == 0.0)
    assert thing.checks == 1


def test_a_look_may_remove_its_own_thing() -> None:
    watching = Rounds(0.01)

    class Last(Thing):
        def check(self) -> None:
            watching.remove(self)
            super().check()

    thing = Last()
    watching.add(thing)
    assert thing.is_looked_at.wait(FOREVER)
    until(lambda: watching.count == 0)
    assert thing.checks == 1


def test_a_look_that_fails_is_told_and_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    watching = Rounds(0.01)

    class Failing(Thing):
        def check(self) -> None:
            super().check()
            raise ZeroDivisionError

    things = [Failing(), Thing()]
    for each in things:
        watching.add(each)
    until(lambda: all(each.checks > MOST_CHECKERS + 1 for each in things))
    for each in things:
        watching.remove(each)
    assert "A periodic check of a sandbox failed." in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_cost_is_that_of_one_look_at_each() -> None:
    watching, thing = Rounds(0.01), Thing(may_end=False)
    watching.add(thing)
    assert thing.is_looked_at.wait(FOREVER)
    time.sleep(0.05)
    thing.may_end.set()
    until(lambda: thing.checks > 1)
    assert watching.cost > 0.0
    watching.remove(thing)
    assert watching.cost == 0.0


def test_threads_that_look_end_when_there_is_nothing_to_look_at() -> None:
    watching, before = Rounds(0.01), threads()

    class Once(Thing):
        def is_due(self) -> bool:
            return not self.checks

    thing = Once()
    watching.add(thing)
    assert thing.is_looked_at.wait(FOREVER)
    assert LINGER_SECONDS < FOREVER
    until(lambda: threads() == before + 1)
    watching.remove(thing)
    until(lambda: threads() == before)


def test_a_forked_child_has_rounds_of_its_own() -> None:
    mine = rounds()
    assert rounds() is mine
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, b"other" if rounds() is not mine else b"same")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"other"
    os.close(reader)
    os.close(writer)
