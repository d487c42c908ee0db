"""The calls of one run: each is answered and recorded once, also one that is cancelled before it has begun."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from agent_tools.code_mode.functions import TypedFunction
from agent_tools.guest.wire.calls import pack
from agent_tools.results.execution import HostCall
from agent_tools.runtime.host_calls.function import CallRequest, Policy, serving_loop
from agent_tools.runtime.host_calls.wire import CallWire
from tests.unit.runtime.host_calls.test_reading import Clock, Guest, message, serving

BEGUN = threading.Event()


async def forever() -> None:
    """Is over when it is cancelled."""
    BEGUN.set()
    await asyncio.Event().wait()


async def end_all() -> None:
    """Cancel every task of the loop, as a loop that ends does."""
    for task in asyncio.all_tasks():
        task.cancel()


def cancel(number: int) -> bytes:
    return pack({"op": "cancel", "id": number}, [])


@contextmanager
def callers_loop() -> Iterator[None]:
    """Have the runs within make their calls in a loop that is not the session's own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    token = serving_loop.set(loop)
    try:
        yield
    finally:
        serving_loop.reset(token)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def own_loop() -> Iterator[None]:
    yield


@pytest.mark.parametrize("in_loop", [own_loop, callers_loop])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "once it has begun"])
def test_a_call_that_is_cancelled_is_answered_and_recorded(in_loop: type, waits: bool) -> None:
    BEGUN.clear()
    with serving(forever) as (guest, calls), in_loop(), calls.run(Clock()) as over:
        guest.send(message(1, "forever") + (b"" if waits else cancel(1)))
        if waits:
            assert BEGUN.wait(20)
            guest.send(cancel(1))
        answer = guest.answer()
        assert (answer["op"], answer["id"], answer["message"]) == ("error", 1, "The call of forever was cancelled.")
        (record,) = over()
        assert isinstance(record, HostCall)
        assert record.status == "cancelled"
        assert guest.answers.empty()


@pytest.mark.parametrize("in_loop", [own_loop, callers_loop])
def test_calls_whose_tasks_somebody_else_cancels_are_answered(in_loop: type) -> None:
    with serving(forever, end_all) as (guest, calls), in_loop(), calls.run(Clock()) as over:
        guest.send(message(1, "end_all") + message(2, "forever") + cancel(2))
        assert sorted(guest.answer()["id"] for _ in range(2)) == [1, 2]
        assert {each.name: each.status for each in over() if isinstance(each, HostCall)}["forever"] == "cancelled"
        run = calls._run
        assert run is not None
        assert run._admission.open == 0

        async def tasks() -> int:
            return len(run._tasks)

        assert asyncio.run_coroutine_threadsafe(tasks(), run._loop).result(20) == 0


@pytest.mark.parametrize("in_loop", [own_loop, callers_loop])
def test_a_number_is_free_again_when_its_call_is_over(in_loop: type) -> None:
    async def nothing() -> int:
        return 7

    with serving(nothing) as (guest, calls), in_loop(), calls.run(Clock()):
        for _ in range(3):
            guest.send(message(1, "nothing"))
            assert guest.answer()["value"] == 7


def test_a_late_result_answers_no_call_of_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, is_over = threading.Event(), threading.Event()

    async def stubborn() -> int:
        """Return a number, whoever cancels it."""
        BEGUN.set()
        while not goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.1, is_over.set)
        return 1

    async def present() -> int:
        return 2

    monkeypatch.setattr("agent_tools.runtime.host_calls.run.END_SECONDS", 0.05)
    BEGUN.clear()
    ours, theirs = socket.socketpair()
    with serving(stubborn, present) as (guest, calls), theirs:
        with calls.run(Clock()):
            guest.send(message(1, "stubborn"))
            assert BEGUN.wait(20)
            calls.serve(CallWire(ours, calls.limits.max_message_bytes))
        following = Guest(theirs)
        with calls.run(Clock()):
            goes_on.set()
            assert is_over.wait(20)
            following.send(message(1, "present"))
            assert following.answer()["value"] == 2


def test_an_approval_that_nobody_gives_any_more_holds_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Clock):
        held = 0

        def hold(self) -> None:
            Counted.held += 1

        def go(self) -> None:
            Counted.held -= 1

    async def never(_: CallRequest) -> bool:
        BEGUN.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr("agent_tools.runtime.host_calls.run.END_SECONDS", 0.05)
    BEGUN.clear()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    token = serving_loop.set(loop)
    functions = {"nothing": TypedFunction(forever, name="nothing", policy=Policy(approve=never))}
    try:
        with serving() as (guest, calls):
            calls.add(functions)
            with calls.run(Counted()):
                guest.send(message(1, "nothing"))
                assert BEGUN.wait(20)
                assert Counted.held == 1
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
            assert Counted.held == 0
    finally:
        serving_loop.reset(token)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(end_all())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
    assert Counted.held == 0
