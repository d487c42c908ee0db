"""The tables of limits: names, defaults and units as a reader wants them, from classes of settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from supply.limits import rendered, table

MIB = 2**20


@dataclass(frozen=True)
class Some:
    """Settings of these tests."""

    address: str
    """Where it is."""
    timeout: float = 30.0
    """The time that it may take."""
    max_memory_bytes: int = 3 * MIB
    """The most
    that it may hold."""
    room: int = MIB
    """Bytes of a folder."""
    max_chars: int = 40_000
    """Kept of a text."""
    share: int = 7
    """A number."""
    is_on: bool = True
    """Switched on."""
    names: tuple[str, ...] = ("a", "b")
    """A list."""
    made: Path = field(default_factory=lambda: Path("x") / "y")
    """A folder."""
    untold: int = 5


def test_each_setting_has_its_default_and_its_unit() -> None:
    assert table(Some).splitlines()[2:] == [
        "| `address` | required |  | Where it is. |",
        "| `timeout` | 30 | s | The time that it may take. |",
        "| `max_memory_bytes` | 3 MiB | bytes | The most that it may hold. |",
        "| `room` | 1 MiB | bytes | Bytes of a folder. |",
        "| `max_chars` | 40,000 | characters | Kept of a text. |",
        "| `share` | 7 |  | A number. |",
        "| `is_on` | yes |  | Switched on. |",
        "| `names` | `a`, `b` |  | A list. |",
        "| `made` | `Path('x') / 'y'` |  | A folder. |",
    ]


def test_tables_are_filled_in_and_the_rest_stays() -> None:
    page = "before\n<!-- table: tests.supply.test_limits.Some -->\nthe table before\n<!-- end -->\nafter\n"
    after = rendered(page)
    assert after == rendered(after)
    assert after.startswith("before\n<!-- table")
    assert after.endswith("| A folder. |\n<!-- end -->\nafter\n")
    assert "the table before" not in after
