"""What a hunt keeps of what it finds."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.hunt import Judge
from tests.fuzz.oracle import Parts, Target


def trips(parts: Parts) -> None:
    if parts[0].startswith(b"a"):
        raise KeyError
    if parts[0].startswith(b"b"):
        raise IndexError


def test_the_smallest_input_of_each_kind_is_kept(tmp_path: Path) -> None:
    hunting = Judge(Target(trips), tmp_path)
    for data in (b"aa", b"aaa", b"c", b"bb", b"a", b"aaaa"):
        hunting(data)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "KeyError-a-library": b"a",
        "IndexError-a-library": b"bb",
    }


def test_what_an_earlier_hunt_found_at_a_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "KeyError-a-library").write_bytes(b"")  # mended since
    Judge(Target(trips), tmp_path)(b"aa")
    assert (tmp_path / "KeyError-a-library").read_bytes() == b"aa"
