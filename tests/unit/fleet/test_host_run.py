"""One thing that goes on at a host, as batches."""

from __future__ import annotations

import threading
import time

import pytest

from agent_tools.errors import EngineError
from agent_tools.fleet import host_run
from agent_tools.fleet.host_run import Abandoned, HostRun, Put
from agent_tools.fleet.protocol import MAX_QUEUED_ITEMS, CallMessage
from agent_tools.results.outputs import Stream

WORD = CallMessage({}, [], 1)


def all_of(going_on: HostRun) -> list[list[object]]:
    going_on.start()
    batches, is_over = list[list[object]](), False
    while not is_over:
        items, is_over = going_on.next()
        batches.append(items)
    return batches


def test_items_of_one_moment_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_run, "LINGER", 10.0)

    def work(put: Put) -> None:
        for number in range(3):
            put(Stream("stdout", str(number)))

    assert all_of(HostRun(work)) == [[Stream("stdout", "0"), Stream("stdout", "1"), Stream("stdout", "2")]]


def test_what_the_caller_has_to_answer_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_run, "LINGER", 10.0)
    answered = threading.Event()

    def work(put: Put) -> None:
        put(WORD)
        answered.wait(20)

    going_on = HostRun(work)
    going_on.start()
    assert going_on.next() == ([WORD], False)
    answered.set()
    assert going_on.next() == ([], True)


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_run, "LINGER", 10.0)
    text = Stream("stdout", "x" * 40_000)
    assert [len(batch) for batch in all_of(HostRun(lambda put: [put(text) for _ in range(5)]))] == [2, 2, 1]  # type: ignore[func-returns-value]


def test_what_is_raised_comes_after_what_was_put() -> None:
    def work(put: Put) -> None:
        put(1)
        raise KeyError("no")

    going_on = HostRun(work)
    going_on.start()
    assert going_on.next()[0] == [1]
    with pytest.raises(KeyError):
        going_on.next()


def test_a_reader_that_is_slow_holds_up_the_work() -> None:
    count = [0]

    def work(put: Put) -> None:
        for number in range(10 * MAX_QUEUED_ITEMS):
            put(number)
            count[0] += 1

    going_on = HostRun(work)
    going_on.start()
    time.sleep(0.3)
    assert count[0] <= MAX_QUEUED_ITEMS
    found, is_over = list[object](), False
    while not is_over:
        items, is_over = going_on.next()
        found += items
    assert found == list(range(10 * MAX_QUEUED_ITEMS))


def test_giving_up_ends_work_that_cannot_go_on_and_whoever_waits() -> None:
    ended = threading.Event()

    def work(put: Put) -> None:
        try:
            while True:
                put(0)
        except Abandoned:
            ended.set()
            raise

    going_on = HostRun(work)
    going_on.start()
    going_on.next()
    going_on.abandon()
    assert ended.wait(10)
    assert going_on.cancelled.is_set()
    with pytest.raises(EngineError, match="given up"):
        going_on.next()
