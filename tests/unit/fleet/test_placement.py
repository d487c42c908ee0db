"""The choice of a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agent_tools import __version__
from agent_tools.errors import EngineUnavailable, HostFull
from agent_tools.fleet.placement import Placement
from agent_tools.fleet.protocol import SKIP_SECONDS, HostLink, HostUnreachable, Load


class Host:
    """A host that says how full it is, or nothing, and counts what it is asked."""

    def __init__(self, name: str, taken: int = 0, slots: int = 10, *, is_gone: bool = False) -> None:
        self.name, self.taken, self.slots, self.is_gone = name, taken, slots, is_gone
        self.asked: list[str] = []

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        self.asked.append(method)
        if self.is_gone:
            raise HostUnreachable(f"{self.name} does not answer")
        if method == "greet":
            assert arguments == (__version__,)
        if method == "open":
            if self.taken >= self.slots:
                raise HostFull(f"{self.taken} of {self.slots} slots are taken.")
            self.taken += 1
        return Load(self.taken, self.slots)

    def tell(self, method: str, *arguments: Any) -> None:
        self.asked.append(method)


class Cluster:
    """Hosts, and a clock that goes on when somebody waits."""

    def __init__(self, *hosts: Host, patience: float = 1.0) -> None:
        self.hosts, self.now = hosts, 0.0
        self.placement = Placement(self, patience, lambda: self.now, self.wait)

    def links(self) -> Sequence[HostLink]:
        return self.hosts

    def close(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def place(self) -> str:
        return self.placement.place(lambda link: link.call("open"))[0].name


def test_of_two_hosts_the_emptier_one_takes_it() -> None:
    cluster = Cluster(Host("full", 9), Host("empty", 1))
    assert [cluster.place() for _ in range(7)] == ["empty"] * 7


def test_many_hosts_fill_evenly() -> None:
    hosts = [Host(str(number), slots=50) for number in range(10)]
    cluster = Cluster(*hosts)
    for _ in range(200):
        cluster.place()
    assert max(host.taken for host in hosts) - min(host.taken for host in hosts) < 10


def test_a_large_host_takes_more_than_a_small_one() -> None:
    cluster = Cluster(Host("large", 10, 100), Host("small", 5, 10))
    assert cluster.place() == "large"


def test_a_host_that_is_full_or_gone_makes_way_for_any_other() -> None:
    hosts = [Host("a", 10), Host("b", 10), Host("c", is_gone=True), Host("d", 3)]
    assert {Cluster(*hosts).place() for _ in range(5)} == {"d"}


def test_one_that_did_not_answer_is_not_asked_again_for_a_while() -> None:
    gone = Host("gone", is_gone=True)
    cluster = Cluster(gone, Host("there", slots=1_000))
    cluster.place()
    asked = len(gone.asked)
    for _ in range(20):
        cluster.place()
    assert len(gone.asked) == max(asked, 1)
    cluster.now += SKIP_SECONDS + 1
    gone.is_gone = False
    assert {cluster.place() for _ in range(3)} >= {"gone"}


def test_where_all_did_not_answer_all_are_asked() -> None:
    hosts = Host("a", is_gone=True), Host("b", is_gone=True)
    cluster = Cluster(*hosts)
    with pytest.raises(EngineUnavailable, match="does not answer"):
        cluster.place()
    hosts[0].is_gone = False
    assert cluster.place() == "a"


def test_all_full_waits_for_a_slot() -> None:
    host = Host("a", 10)
    cluster = Cluster(host, patience=5.0)
    wait = cluster.wait

    def freed(seconds: float) -> None:
        wait(seconds)
        if cluster.now > 2:
            host.taken = 9

    cluster.placement = Placement(cluster, 5.0, lambda: cluster.now, freed)
    assert cluster.place() == "a"
    assert 2 < cluster.now < 3


def test_all_full_for_longer_than_the_patience_says_so() -> None:
    with pytest.raises(HostFull, match=r"10 of 10 slots are taken.*Waited 1 s \(patience\).*add nodes"):
        Cluster(Host("a", 10), Host("b", is_gone=True)).place()


def test_no_host_at_all_says_where_to_look() -> None:
    with pytest.raises(EngineUnavailable, match="agent-tools fleet status"):
        Cluster().place()


def test_every_host_is_greeted_once_and_told_in_numbers() -> None:
    hosts = Host("a", 1), Host("b", 2), Host("c", is_gone=True)
    cluster = Cluster(*hosts)
    assert cluster.placement.loads() == {"a": Load(1, 10), "b": Load(2, 10)}
    cluster.placement.loads()
    assert hosts[0].asked == ["greet", "load", "load"]


def test_what_fails_in_another_way_is_raised_at_once() -> None:
    def fail(link: HostLink) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        Cluster(Host("a"), Host("b")).placement.place(fail)
