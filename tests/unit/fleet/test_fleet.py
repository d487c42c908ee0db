"""A fleet: reservations, leases, and its place as an owner of sessions."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_tools import CodeInterpreter, InvalidParams
from agent_tools.engines.engine import Isolation
from agent_tools.errors import EngineUnavailable, HostFull
from agent_tools.extras import pip_install
from agent_tools.fleet import connect
from agent_tools.fleet.fleet import LeaseRenewal
from agent_tools.fleet.placement import Reservation
from agent_tools.fleet.protocol import HostUnreachable, RemoteSpec
from agent_tools.limits import Limits
from tests.unit.fleet.conftest import Rig
from tests.waiting import until


def test_a_reservation_is_spread_and_taken_by_sessions_of_its_kind(rig: Rig) -> None:
    assert rig.fleet.reserve(4) == 4
    assert [load.taken for load in rig.fleet.load().values()] == [2, 2]
    sandboxes = [rig.sandbox() for _ in range(4)]
    for sandbox in sandboxes:
        sandbox.start()
    assert rig.fleet.pools.takes == {"hit": 4}
    assert rig.fleet.pools.ready == 0
    assert sum(load.taken for load in rig.fleet.load().values()) == 4
    assert sandboxes[0].run_code("6 * 7").value == 42


def test_a_reservation_serves_the_tool_and_functions_alike(rig: Rig, tmp_path: Path) -> None:
    def double(n: int) -> int:
        return 2 * n

    rig.fleet.reserve(2)
    with CodeInterpreter({"work_dir": str(tmp_path / "work")}, runtime=rig.fleet) as tool:
        assert tool.run("1 + 1").value == 2
    assert rig.sandbox(hostcalls=[double]).run_code("await double(4)").value == 8
    assert rig.fleet.pools.takes == {"hit": 2}


def test_what_nobody_took_is_given_back(rig: Rig) -> None:
    rig.fleet.reserve(3)
    rig.fleet.close_pools()
    until(lambda: sum(load.taken for load in rig.fleet.load().values()) == 0)
    assert rig.fleet.reserve(100) == 8
    assert rig.fleet.reserve(1) == 0


def test_a_reservation_on_a_host_that_vanished_is_made_up_for(rig: Rig) -> None:
    rig.fleet.reserve(2)
    rig.links[0].vanish()
    for _ in range(2):
        assert rig.sandbox().run_code("1").value == 1


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
def test_a_number_that_is_none_is_refused(rig: Rig, count: Any) -> None:
    with pytest.raises(InvalidParams, match="positive whole number"):
        rig.fleet.reserve(count)


def test_the_option_pool_keeps_so_many_reserved(rig: Rig) -> None:
    first = rig.sandbox({"pool": 2})
    assert first.prepare_pool() == 2
    first.start()
    until(lambda: rig.fleet.pools.ready == 2)
    assert rig.fleet.pools.takes == {"hit": 1}


def test_modules_are_preloaded(rig: Rig) -> None:
    sandbox = rig.sandbox({"pool": 1, "preload": ["colorsys"]})
    sandbox.prepare_pool()
    assert sandbox.run_code("import sys; 'colorsys' in sys.modules").outputs[-1].text == "True"  # type: ignore[union-attr]


def test_a_session_lives_as_long_as_its_process_renews_it(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(2, lease=2.0)
    sandbox = rig.sandbox()
    sandbox.run_code("x = 1")
    rig.fleet.reserve(1)
    time.sleep(4.0)
    rig.fleet._leases.renew()
    assert sandbox.run_code("x").outputs[-1].text == "1"  # type: ignore[union-attr]


def test_leaving_a_fleet_closes_all_of_it(rig: Rig) -> None:
    rig.sandbox().start()
    rig.fleet.reserve(1)
    with rig.fleet:
        pass
    until(lambda: [link.host.load().taken for link in rig.links] == [0, 0])
    rig.fleet.disconnect()


@dataclass
class Kept:
    """Something that is leased, on a host that answers `answer`."""

    answer: Any
    name: str = "host"
    asked: list[Any] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def place(self) -> Any:
        return self, "id"

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        self.asked.append((method, *arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def note_lost(self, id_: str, why: str) -> None:
        assert id_ == "id"
        self.lost.append(why)


@pytest.mark.parametrize(
    ("answer", "is_lost"),
    [([], False), (["id"], True), (HostUnreachable("silent"), False), (HostUnreachable("dead", is_final=True), True)],
)
def test_a_renewal_tells_what_is_lost(answer: Any, is_lost: bool) -> None:
    kept = Kept(answer)
    LeaseRenewal(1.0, lambda: [kept]).renew()
    assert kept.asked == [("renew", ["id"])]
    assert bool(kept.lost) is is_lost


def test_a_renewal_asks_each_host_once() -> None:
    first, second, other = Kept([]), Kept([]), Kept([], name="other")
    LeaseRenewal(1.0, lambda: [first, second, other]).renew()
    assert len(first.asked) + len(second.asked) == 1
    assert len(other.asked) == 1


def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(EngineUnavailable, match=re.escape(pip_install("ray"))):
        connect("ray")


@pytest.mark.parametrize("word", ["docker", "kubernetes", "nothing"])
def test_a_word_without_a_fleet_is_refused(word: str) -> None:
    with pytest.raises(InvalidParams):
        connect(word)


def test_a_renewal_that_fails_is_tried_again_and_holds_up_no_other_host() -> None:
    full, other = Kept(HostFull("no")), Kept([], name="other")
    leases = LeaseRenewal(0.2, lambda: [full, other])
    leases.begin()
    until(lambda: len(full.asked) > 2 and len(other.asked) > 2)
    leases.end()
    assert not full.lost


def test_leases_that_cannot_be_listed_once_are_renewed_the_next_time() -> None:
    kept, failures = Kept([]), [RuntimeError("changed size")]

    def leased() -> list[Kept]:
        if failures:
            raise failures.pop()
        return [kept]

    leases = LeaseRenewal(0.2, leased)
    leases.begin()
    until(lambda: bool(kept.asked))
    leases.end()


def test_a_reserve_that_cannot_be_topped_up_fails_no_opening(rig: Rig) -> None:
    failed: list[Any] = []

    def reserve(*arguments: Any) -> int:
        failed.append(arguments)
        raise EngineUnavailable("no")

    for link in rig.links:
        link.host.reserve = reserve  # type: ignore[method-assign,assignment]
    assert rig.sandbox({"pool": 2}).run_code("1").value == 1
    until(lambda: bool(failed))


def test_a_reserve_that_was_given_up_is_not_topped_up_late(rig: Rig) -> None:
    began, may_end = threading.Event(), threading.Event()
    reserved = rig.fleet._reserved.left
    kinds: list[Any] = []

    def late(kind: Any = None) -> int:
        kinds.append(kind)
        began.set()
        may_end.wait(30)
        return reserved(kind)

    rig.fleet._reserved.left = late  # type: ignore[method-assign]
    rig.sandbox({"pool": 1}).run_code("1")
    assert began.wait(30)
    closing = threading.Thread(target=rig.fleet.close_pools)
    closing.start()
    may_end.set()
    closing.join(30)
    rig.fleet._reserved.left = reserved  # type: ignore[method-assign]
    rig.fleet._keep(kinds[0], 1, 0)
    assert rig.fleet._reserved.left() == 0


def test_what_is_taken_of_a_reservation_that_was_lost_is_nothing() -> None:
    reservation = Reservation(RemoteSpec(Isolation(), Limits()), Kept([]), "id", 2)  # type: ignore[arg-type]
    reservation.note_lost("id", "gone")
    reservation.count -= 1
    assert reservation.left == 0
    assert reservation.place is None


def test_a_run_is_read_on_where_messages_had_to_wait(rig: Rig) -> None:
    sandbox = rig.sandbox()
    sandbox.start()
    host, refused = rig.link_of(sandbox).host, [2]
    more = host.more

    def more_later(*arguments: Any) -> Any:
        if refused[0]:
            refused[0] -= 1
            raise HostFull("4,096 calls wait")
        return more(*arguments)

    host.more = more_later  # type: ignore[method-assign,assignment]
    code = "print('on', flush=True)\nimport time; time.sleep(0.3)\nprint('off')"
    assert sandbox.run_code(code).stdout == "on\noff\n"
    assert refused == [0]
