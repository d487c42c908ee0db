"""What clients may have open at once."""

from __future__ import annotations

import contextlib

import pytest

from agent_tools.bodies.connections import InProgress


def test_requests_of_one_owner_leave_room_for_others() -> None:
    places = InProgress(4, 3, LookupError)
    with contextlib.ExitStack() as stack:
        for owner in ("first", "first", "first", "second"):
            stack.enter_context(places.place(owner))
        for owner in ("first", "second"):  # one has its share, and all have what there is
            with pytest.raises(LookupError), places.place(owner):
                pass
    assert places.number == 0
