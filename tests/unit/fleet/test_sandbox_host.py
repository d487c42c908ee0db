"""A host: slots, leases, reservations, and what it refuses."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent_tools import __version__
from agent_tools.engines.engine import Isolation
from agent_tools.errors import EngineError, HostFull, InvalidParams, SandboxStartError
from agent_tools.fleet import SandboxHost
from agent_tools.fleet.leased_session import _pass_on
from agent_tools.fleet.protocol import MAX_QUEUED_ITEMS, CallMessage, RemoteSpec, SessionUnknown
from agent_tools.fleet.sandbox_host import HostReservation
from agent_tools.limits import CallLimits, Limits
from agent_tools.runtime.files.work_dir import make_temp_work_dir
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine
from tests.unit.fleet.conftest import process_host
from tests.waiting import until

SPEC = RemoteSpec(Isolation(), Limits())


@pytest.fixture
def new_host() -> Iterator[Callable[..., SandboxHost]]:
    made: list[SandboxHost] = []

    def make(slots: int = 2, **options: Any) -> SandboxHost:
        made.append(process_host(slots, **options))
        return made[-1]

    yield make
    for host in made:
        host.close_all()


def test_slots_bound_what_lives_and_are_given_back(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    host.open("a", SPEC)
    with pytest.raises(HostFull, match="1 of 1 slots are taken"):
        host.open("b", SPEC)
    host.close("a")
    host.close("a")
    assert host.load().taken == 0
    host.open("b", SPEC)


def test_a_slot_is_given_back_when_a_sandbox_does_not_come_up() -> None:
    class Broken(ProcessEngine):
        def start(self, spec: Any) -> Any:
            raise SandboxStartError("no")

    host = SandboxHost(Runtime(Broken(), lambda recipe: "none"), 1)
    with pytest.raises(SandboxStartError):
        host.open("a", SPEC)
    assert host.load().taken == 0
    assert host.reserve("r", SPEC, 1) == 1
    until(lambda: host.load().taken == 0)
    host.close_all()


def test_an_image_that_cannot_be_had_leaves_no_folder() -> None:
    def refuse(recipe: Any) -> str:
        raise SandboxStartError("no image")

    host = SandboxHost(Runtime(ProcessEngine(), refuse), 1)
    with pytest.raises(SandboxStartError):
        host.open("a", SPEC)
    assert not os.listdir(host._base)
    assert host.load().taken == 0
    host.close_all()


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_not_renewed_is_closed(new_host: Callable[..., SandboxHost]) -> None:
    clock = Clock()
    host = new_host(3, lease=10.0, clock=clock)
    host.open("kept", SPEC)
    host.open("left", SPEC)
    assert host.reserve("reserved", SPEC, 1) == 1
    clock.now = 9.0
    assert host.renew(["kept", "never there"]) == ["never there"]
    clock.now = 15.0
    until(lambda: host.load().taken == 1)
    assert host.renew(["left", "reserved", "kept"]) == ["left", "reserved"]
    with pytest.raises(SessionUnknown):
        host.do("left", "session", "interrupt")


def test_folders_of_processes_that_were_killed_are_removed(new_host: Callable[..., SandboxHost]) -> None:
    child = os.fork()
    if not child:
        make_temp_work_dir()
        os._exit(0)
    os.waitpid(child, 0)
    named = f"agent-tools-{child}-"
    assert [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(named)]
    clock = Clock()
    new_host(1, lease=2.0, clock=clock)
    clock.now = 3.0
    until(lambda: not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(named)])


def test_code_that_runs_does_not_keep_a_session_whose_caller_is_gone(new_host: Callable[..., SandboxHost]) -> None:
    clock = Clock()
    host = new_host(1, lease=10.0, clock=clock)
    host.open("a", SPEC)
    items, is_over = host.begin("a", "run", "code", "print('on', flush=True)\nimport time; time.sleep(60)", 60.0, {})
    assert items
    assert not is_over
    clock.now = 11.0
    until(lambda: host.load().taken == 0)


def test_a_reservation_is_taken_by_sessions_of_its_kind(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(3)
    assert host.reserve("r", SPEC, 5) == 3
    until(lambda: host.load().ready == 3)
    with pytest.raises(HostFull):
        host.open("other", SPEC)
    host.open("a", replace(SPEC, prelude="given = 7", call_limits=CallLimits()), "r")
    assert (host.load().taken, host.load().ready) == (3, 2)
    items, _ = host.begin("a", "run", "code", "given", 30.0, {})
    assert items[0].text == "7"
    host.release("r")
    until(lambda: host.load().taken == 1)
    assert host.reserve("again", SPEC, 5) == 2
    with pytest.raises(HostFull, match="3 of 3"):
        host.open("b", SPEC)


def test_a_session_of_another_kind_takes_none(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(2)
    host.reserve("r", SPEC, 1)
    host.open("a", replace(SPEC, idle_stop=60.0), "r")
    until(lambda: host.load().ready == 1)
    assert host.load().taken == 2


def test_who_takes_one_that_is_being_made_waits_for_it(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    host.reserve("r", SPEC, 1)
    host.open("a", SPEC, "r")
    assert (host.load().taken, host.load().ready) == (1, 0)


def test_a_reservation_that_ends_closes_what_is_still_being_made() -> None:
    began, may_end, given_back, closed = threading.Event(), threading.Event(), [0], [0]

    class Made:
        def close(self) -> None:
            closed[0] += 1

    def make(_: RemoteSpec) -> Any:
        began.set()
        may_end.wait(10)
        return Made()

    def give_back(count: int) -> None:
        given_back[0] += count

    reservation = HostReservation(SPEC, 1, make, give_back)
    began.wait(10)
    timer = threading.Timer(0.2, may_end.set)
    timer.start()
    reservation.end()
    assert (given_back, closed) == ([1], [1])
    timer.join()


@pytest.mark.parametrize("verb", ["close", "run", "stream", "recovery", "__class__", "branch"])
def test_a_caller_calls_only_what_he_may(new_host: Callable[..., SandboxHost], verb: str) -> None:
    host = new_host(1)
    host.open("a", SPEC)
    for noun in ("session", "files", "variables", "commands", "recovery"):
        with pytest.raises(InvalidParams, match="not a method for callers"):
            host.do("a", noun, verb)
    with pytest.raises(InvalidParams):
        host.begin("a", "run", verb)


def test_another_release_is_refused_with_both_numbers(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    host.greet(__version__)
    with pytest.raises(EngineError, match=rf"0\.0\.9, and the host {__version__}"):
        host.greet("0.0.9")
    assert host.facts().release == __version__


def test_a_run_that_was_dropped_is_not_read_on(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    host.open("a", SPEC)
    host.begin("a", "run", "code", "print(1, flush=True)\nimport time; time.sleep(60)", 60.0, {})
    host.drop("a", "run")
    with pytest.raises(EngineError, match="given up"):
        host.more("a", "run")
    assert host.begin("a", "next", "code", "'usable'", 30.0, {})[0][0].text == "'usable'"


def test_after_its_end_a_host_opens_nothing(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    host.close_all()
    with pytest.raises(HostFull):
        host.open("a", SPEC)
    assert host.reserve("r", SPEC, 1) == 0


def test_a_host_without_slots_is_refused() -> None:
    with pytest.raises(InvalidParams, match="1 or more"):
        process_host(0)


def test_a_run_that_nobody_reads_does_not_hold_up_the_end_of_its_session(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    host.open("a", replace(SPEC, call_limits=CallLimits()))
    host.begin("a", "run", "code", "print(1, flush=True)\nimport time; time.sleep(60)", 60.0, {})
    leased = host._leased["a"]
    assert leased._relay
    leased._relay._own.loop.call_soon_threadsafe(
        lambda: [_pass_on(leased._runs["run"], CallMessage({}, [], 1)) for _ in range(2 * MAX_QUEUED_ITEMS)]  # type: ignore[func-returns-value]
    )
    until(lambda: leased._runs["run"]._queue.full())
    closing = threading.Thread(target=host.close, args=["a"], daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert host.load().taken == 0


def broken(leased: Any) -> None:
    """Have its closing fail, after it was done."""
    close = leased.close

    def close_and_fail() -> None:
        close()
        raise RuntimeError("not ours")

    leased.close = close_and_fail


def test_a_session_that_cannot_be_closed_gives_its_slot_back_and_leases_go_on(
    new_host: Callable[..., SandboxHost],
) -> None:
    clock = Clock()
    host = new_host(2, lease=2.0, clock=clock)
    host.open("a", SPEC)
    broken(host._leased["a"])
    clock.now = 3.0
    until(lambda: host.load().taken == 0)
    host.open("b", SPEC)
    clock.now = 6.0
    until(lambda: host.load().taken == 0)
    host.open("c", SPEC)
    broken(host._leased["c"])
    with pytest.raises(RuntimeError, match="not ours"):
        host.close("c")
    assert host.load().taken == 0


def test_an_opening_that_is_asked_for_again_leaves_one_session(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(2)
    host.open("a", SPEC)
    first = host._leased["a"]
    host.open("a", SPEC)
    assert host._leased["a"] is first
    assert host.load().taken == 1
    assert first.session.is_alive


def test_an_opening_under_way_does_not_survive_the_end_of_its_host(new_host: Callable[..., SandboxHost]) -> None:
    host = new_host(1)
    started = host._started

    def late(*arguments: Any, **options: Any) -> Any:
        leased = started(*arguments, **options)
        host.close_all()
        return leased

    host._started = late  # type: ignore[method-assign]
    with pytest.raises(HostFull):
        host.open("a", SPEC)
    assert (host._leased, host.load().taken) == ({}, 0)
