"""The history that clients ask a kernel for."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.guest.kernel.history import select_history

INPUTS = ["", "x = 1", "print(x)", "x = 1", "y"]


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"kind": "tail", "n": 2}, [3, 4]),
        ({"kind": "tail", "n": 0}, []),
        ({"kind": "tail", "n": None}, [1, 2, 3, 4]),
        ({"kind": "range", "start": 2, "stop": 4}, [2, 3]),
        ({"kind": "range", "start": 0, "stop": None}, [1, 2, 3, 4]),
        ({"kind": "range", "start": 0, "stop": 0}, []),
        ({"kind": "range", "session": -1}, []),
        ({"kind": "search", "pattern": "x*"}, [1, 3]),
        ({"kind": "search", "pattern": "x*", "unique": True}, [3]),
        ({"kind": "search", "pattern": "*", "n": 1}, [4]),
        ({"kind": "search"}, [1, 2, 3, 4]),
        ({"kind": "other"}, []),
    ],
)
def test_what_is_asked_for_is_found(asked: dict[str, Any], numbers: list[int]) -> None:
    assert select_history(INPUTS, asked["kind"], asked) == [(number, INPUTS[number]) for number in numbers]
