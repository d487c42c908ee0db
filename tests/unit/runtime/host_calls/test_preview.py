"""A call's arguments in its record: short, on one line, and cheap whatever the guest sent."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.runtime.host_calls.preview import MOST_ARGUMENTS, preview


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ([], {}, ""),
        ([1, "a"], {"b": None}, "1, 'a', b=None"),
        (list(range(20)), {}, "0, 1, 2, 3, 4, 5"),
        ([], {f"k{number}": number for number in range(20)}, "k0=0, k1=1, k2=2, k3=3, k4=4, k5=5"),
        ([list(range(100))], {}, "[0, 1, 2, 3, 4, 5, ...]"),
        ([{"b": 1, "a": 2}], {}, "{'a': 2, 'b': 1}"),
        ([], {"n" * 100: 1}, f"{'n' * 40}=1"),
        (["\x1b[31mred\u202e"], {"\x1b[2J": 1}, "'\\x1b[31mred\\u202e', =1"),
    ],
)
def test_the_beginning_of_everything_is_shown(args: list[Any], kwargs: dict[str, Any], shown: str) -> None:
    assert preview(args, kwargs, 200) == shown


@pytest.mark.parametrize("most", [10, 200])
def test_however_long_the_arguments_are_the_preview_is_short(most: int) -> None:
    nested: Any = "x" * 10_000
    for _ in range(100):
        nested = [nested] * 10
    for args in (["x" * 10_000], [10**3000], [nested] * 10, [{"k" * 10_000: nested}], [b"x" * 10_000]):
        text = preview(args, {"n" * 10_000: args[0]}, most)
        assert 0 < len(text) <= most
        assert "\n" not in text


def test_no_more_arguments_are_looked_at_than_are_shown() -> None:
    class Seen:
        count = 0

        def __repr__(self) -> str:
            Seen.count += 1
            return "seen"

    preview([Seen() for _ in range(1000)], {str(number): Seen() for number in range(1000)}, 200)
    assert Seen.count == 2 * MOST_ARGUMENTS
