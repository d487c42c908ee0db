"""Containers that are being made: what the guard of a process is told of them, and how it goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.docker.unfinished import Guard, Unfinished, remove_rest
from tests.waiting import processes_with, until


class NotedGuard(Guard):
    """Notes what it is told, and removes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[set[str]] = []

    def tell(self, names: Collection[str]) -> None:
        self.told.append(set(names))


class Engine:
    """As much of a connection as a look for containers needs; `names` are there, and `removed` were."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.removed: list[str] = []
        self.api = self

    def new_client(self, _: int) -> Engine:
        return self

    def containers(self, filters: dict[str, list[str]], **_: Any) -> list[dict[str, str]]:
        name = filters["label"][0].partition("=")[2]
        return [{"Id": name}] if name in self.names else []

    def remove_container(self, id_: str, **_: Any) -> None:
        self.names.discard(id_)
        self.removed.append(id_)

    def close(self) -> None:
        pass


def test_the_guard_knows_each_container_until_it_is_started() -> None:
    guard = NotedGuard()
    made = Unfinished(Engine(), guard)  # type: ignore[arg-type]
    with made.made("a") as note_created:
        note_created()
        with made.made("b"):
            pass
    assert guard.told == [{"a."}, {"a"}, {"a", "b."}, {"a"}, set()]


def test_a_container_whose_creation_failed_is_removed_once_it_appears_and_keeps_no_guard() -> None:
    guard, engine = NotedGuard(), Engine()
    made = Unfinished(engine, guard)  # type: ignore[arg-type]
    with made.made("a"):
        made.doubt("a")
    assert guard.told == [{"a."}, set()]
    engine.names.add("a")
    made.remove()
    assert engine.removed == ["a"]


def test_the_rest_is_removed_at_once_or_as_it_appears() -> None:
    engine = Engine("created", "late")
    remove_rest(["created", "gone", "late."], engine)  # type: ignore[arg-type]
    assert sorted(engine.removed) == ["created", "late"]


def test_a_forked_child_knows_nothing_of_its_parents_containers() -> None:
    guard = NotedGuard()
    made = Unfinished(Engine(), guard)  # type: ignore[arg-type]
    with made.made("a"):
        child = os.fork()
        if not child:
            with made.made("b"):
                os._exit(guard.told[-1] == {"b."})
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_killed_guard_is_replaced_and_one_without_names_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_TOOLS_MARK", str(tmp_path))
    guard = Guard()
    guard.tell({"a."})
    (first,) = until(lambda: processes_with("AGENT_TOOLS_MARK", tmp_path))
    os.kill(first, signal.SIGKILL)
    until(lambda: not processes_with("AGENT_TOOLS_MARK", tmp_path))
    guard.tell({"a."})
    until(lambda: processes_with("AGENT_TOOLS_MARK", tmp_path))
    guard.tell(())
    until(lambda: not processes_with("AGENT_TOOLS_MARK", tmp_path))


def test_a_stopped_guard_is_replaced_and_hears_no_end_at_which_it_would_remove_what_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_MARK", str(tmp_path))
    guard = Guard()
    guard.tell({"a."})
    (first,) = until(lambda: processes_with("AGENT_TOOLS_MARK", tmp_path))
    os.kill(first, signal.SIGSTOP)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):  # more than the connection holds
        guard.tell({f"b{number}-{each}." for each in range(1_000)})
        if len(os.listdir("/proc/self/fd")) > before:
            break
    until(lambda: len(processes_with("AGENT_TOOLS_MARK", tmp_path)) == 2)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    os.kill(first, signal.SIGKILL)
    guard.tell(())
    until(lambda: not processes_with("AGENT_TOOLS_MARK", tmp_path))
