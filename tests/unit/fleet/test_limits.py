"""The limits of a fleet that no other file has: each by what it holds back."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.engines.engine import Isolation
from agent_tools.errors import HostFull, SandboxStartError, SessionLost
from agent_tools.fleet import placement as reach_module
from agent_tools.fleet.fleet import LeaseRenewal
from agent_tools.fleet.placement import HostFinder, Placement, Reserved
from agent_tools.fleet.protocol import (
    ASK_SECONDS,
    CLOSE_SECONDS,
    RENEWALS,
    SEND_SECONDS,
    STARTS_AT_ONCE,
    HostUnreachable,
    RemoteSpec,
)
from agent_tools.fleet.sandbox_host import SandboxHost
from agent_tools.limits import Limits
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine

SPEC = RemoteSpec(Isolation(), Limits())


class Link:
    """A host that is gone but for what `answers` has, and notes how long it was waited for."""

    name = "host"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.waited: dict[str, float | None] = {}

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        self.waited[method] = seconds
        answer = self.answers.get(method, HostUnreachable("gone"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(self, method: str, *arguments: Any) -> None: ...

    def links(self) -> list[Link]:
        return [self]

    def close(self) -> None: ...


def test_so_many_sandboxes_of_a_host_start_at_once() -> None:
    class Slow(ProcessEngine):
        most, now = 0, 0
        lock, may_end = threading.Lock(), threading.Event()

        def start(self, spec: Any) -> Any:
            with self.lock:
                Slow.now += 1
                Slow.most = max(Slow.most, Slow.now)
            self.may_end.wait(60)
            with self.lock:
                Slow.now -= 1
            raise SandboxStartError("no")

    host = SandboxHost(Runtime(Slow(), lambda recipe: "none"), 20)
    threads = [threading.Thread(target=_open, args=(host, str(number))) for number in range(STARTS_AT_ONCE + 3)]
    for thread in threads:
        thread.start()
    while Slow.now < STARTS_AT_ONCE:
        time.sleep(0.01)
    assert host.load().taken >= STARTS_AT_ONCE
    Slow.may_end.set()
    for thread in threads:
        thread.join()
    host.close_all()
    assert Slow.most == STARTS_AT_ONCE


def _open(host: SandboxHost, id_: str) -> None:
    with pytest.raises(SandboxStartError):
        host.open(id_, SPEC)


def test_a_host_is_asked_for_so_long() -> None:
    link = Link(greet=None)
    Placement(link).loads()
    assert link.waited["load"] == ASK_SECONDS
    Reserved()._add(SPEC, link, 1, Placement(link))
    assert link.waited["reserve"] == ASK_SECONDS


def test_closing_and_releasing_wait_so_long() -> None:
    link = Link(reserve=1)
    reach = HostFinder(SPEC, lambda id_, spec: link, bool, bool)
    reach.placed()
    reach.close()
    assert link.waited["close"] == CLOSE_SECONDS
    reserved = Reserved()
    reserved._add(SPEC, link, 1, Placement(link))
    reserved.release()
    assert link.waited["release"] == CLOSE_SECONDS


def test_a_lease_is_renewed_so_often_while_it_lasts() -> None:
    leases, waits = LeaseRenewal(20.0, list), []

    class Over:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return True

    leases._is_over = Over()  # type: ignore[assignment]
    leases._go_on()
    assert waits == [20.0 / RENEWALS]


def test_what_a_run_has_made_is_asked_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    link, lost, now = Link(begin=([], False), more=HostFull("4,096 calls wait")), list[Any](), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(reach_module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    reach = HostFinder(SPEC, lambda id_, spec: link, lost.append, bool)
    with pytest.raises(SessionLost):
        list(reach.follow("code", "run"))
    assert SEND_SECONDS < now[0] < SEND_SECONDS + 1
    assert lost == [link]
