"""Handles: given out before there is a container, which is made once, by what is first done in it."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from agent_tools.containers.failures import ContainerNotFound, DiskFull
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import MemoryRows
from agent_tools.mcp.handles import MAX_FRESH, Handles, Stock


class Made:
    """The containers that were made, in rows; none while the disk is full."""

    def __init__(self) -> None:
        self.rows, self.made, self.is_full = MemoryRows(), list[str](), False

    def create(self, owner: str, spec: Any, id_: str) -> None:
        if self.is_full:
            raise DiskFull("The disk is full.")
        self.made.append(id_)
        times: Any = dict.fromkeys(("created_at", "last_active_at", "idle_minutes", "bytes"), 0)
        texts: Any = dict.fromkeys(("name", "memory_limit", "network"), "")
        self.rows.add(ContainerRecord(id=id_, owner=owner, status="active", has_run=False, **times, **texts))

    def active(self, owner: str, id_: str) -> None:
        if not self.rows.get(ContainerRecord, id_, owner=owner, status="active"):
            raise ContainerNotFound(id_)

    def handles(self, *, is_alone: bool = False) -> Handles:
        return Handles(Stock(cast("Any", self), self.rows, is_alone))


def test_a_container_is_made_once_by_what_is_first_done_in_it() -> None:
    made = Made()
    handles = made.handles()
    handle = handles.new("me")
    assert made.made == []
    handles.ensure("me", handle)
    handles.ensure("me", handle)
    assert made.made == [handle]
    with pytest.raises(ContainerNotFound):
        handles.ensure("you", handle)
    assert handles.usual == ""


def test_one_client_alone_has_a_usual_container_and_a_new_one_once_that_is_over() -> None:
    made = Made()
    handles = made.handles(is_alone=True)
    handle = handles.new("me")
    assert handles.new("me") == handles.usual == handle
    handles.ensure("me", handle)
    made.rows.change(ContainerRecord, handle, status="deleting")
    assert handles.usual == ""
    assert handles.new("me") != handle


def test_a_container_that_could_not_be_made_is_made_later() -> None:
    made = Made()
    handles = made.handles()
    handle = handles.new("me")
    made.is_full = True
    with pytest.raises(DiskFull):
        handles.ensure("me", handle)
    made.is_full = False
    handles.ensure("me", handle)
    assert made.made == [handle]


def test_handles_that_nothing_is_done_with_are_forgotten_oldest_first() -> None:
    handles = Made().handles()
    given = [handles.new("me") for _ in range(MAX_FRESH + 1)]
    handles.ensure("me", given[1])
    with pytest.raises(ContainerNotFound):
        handles.ensure("me", given[0])


def test_handles_of_one_key_push_out_no_handle_of_another() -> None:
    handles = Made().handles()
    handle = handles.new("you")
    for _ in range(MAX_FRESH + 10):
        handles.new("me")
    handles.ensure("you", handle)


def test_a_new_handle_is_its_owners_alone() -> None:
    made = Made()
    handles = made.handles()
    handle = handles.new("me")
    with pytest.raises(ContainerNotFound):
        handles.ensure("you", handle)
    handles.ensure("me", handle)
    assert made.rows.get(ContainerRecord, handle, owner="me")


def test_a_handle_is_hard_to_guess_where_others_are() -> None:
    assert len(Made().handles().new("me")) == len("cntr_") + 48
    assert len(Made().handles(is_alone=True).new("me")) == len("cntr_") + 8


def test_a_container_that_takes_long_to_make_keeps_no_other_waiting() -> None:
    class Slow(Made):
        def create(self, owner: str, spec: Any, id_: str) -> None:
            if owner == "me":
                handles.ensure("you", yours)
            super().create(owner, spec, id_)

    made = Slow()
    handles = made.handles()
    mine, yours = handles.new("me"), handles.new("you")
    ensuring = threading.Thread(target=handles.ensure, args=("me", mine), daemon=True)
    ensuring.start()
    ensuring.join(60)
    assert made.made == [yours, mine]
