"""Work beside the caller: begun at once, bounded, and waited for at the end."""

from __future__ import annotations

import threading

import pytest

from agent_tools.machine.background import MOST_AT_ONCE, Background, begin, do_all, do_now


def test_work_is_done_beside_the_caller() -> None:
    background, may_end, done = Background(), threading.Event(), []
    background.do(lambda: done.append(may_end.wait(10)))
    assert done == []
    may_end.set()
    background.join()
    assert done == [True]


def test_begun_work_has_an_outcome() -> None:
    may_end = threading.Event()
    begun = begin(lambda: may_end.wait(10), "a wait")
    assert not begun.done()
    may_end.set()
    assert begun.result(10)
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 / 0, "a failure").result(10)


def test_joining_waits_for_all_of_it() -> None:
    background, done = Background(), []
    for number in range(MOST_AT_ONCE):
        background.do(lambda number=number: done.append(number))
    background.join()
    assert sorted(done) == list(range(MOST_AT_ONCE))


def test_who_brings_more_than_is_done_at_once_does_it() -> None:
    background, may_end, by = Background(), threading.Event(), []
    for _ in range(MOST_AT_ONCE):
        background.do(lambda: may_end.wait(10))
    background.do(lambda: by.append(threading.current_thread()))
    assert by == [threading.current_thread()]
    may_end.set()
    background.join()


def test_what_has_ended_makes_room() -> None:
    background, by = Background(), []
    for _ in range(MOST_AT_ONCE):
        background.do(lambda: None)
    background.join()
    background.do(lambda: by.append(threading.current_thread()))
    background.join()
    assert by != [threading.current_thread()]


def test_work_that_brings_work_is_no_deadlock() -> None:
    background, done = Background(), threading.Event()
    background.do(lambda: background.do(done.set))
    assert done.wait(10)
    background.join()


def test_now_is_now() -> None:
    by: list[threading.Thread] = []
    do_now(lambda: by.append(threading.current_thread()))
    assert by == [threading.current_thread()]


def test_all_is_done_several_at_once() -> None:
    together, done = threading.Barrier(MOST_AT_ONCE), []

    def work() -> None:
        together.wait(10)
        done.append(threading.current_thread().name)

    do_all([work] * (3 * MOST_AT_ONCE))
    assert len(done) == 3 * MOST_AT_ONCE
    assert len(set(done)) <= MOST_AT_ONCE
    do_all([])


def test_what_one_raises_keeps_no_other_from_being_done() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 3:
            raise ZeroDivisionError
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        do_all((lambda number=number: work(number)) for number in range(100))
    assert sorted(done) == [number for number in range(100) if number != 3]
