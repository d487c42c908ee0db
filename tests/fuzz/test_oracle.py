"""The oracle itself: it catches defects that were planted, and lets pass what costs no more than it may."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.oracle import MIB, Bound, Finding, Parts, Target, judge

ROOMY = Bound(seconds=5.0, bytes=MIB, bytes_per_byte=4)
SMALL = Bound(seconds=0.02, seconds_per_byte=2e-6, bytes=MIB, bytes_per_byte=4)
INPUT = bytes(range(256)) * 16
HELD: list[bytes] = []


def compares_all_with_all(parts: Parts) -> None:
    for one in parts[0]:
        parts[0].count(one)
        for other in parts[0]:
            assert one >= 0 <= other


def repeats_a_part_for_each_byte(parts: Parts) -> None:
    assert [bytes([one]) * len(parts[0]) for one in parts[0]]


def holds_much_for_a_moment(parts: Parts) -> None:
    assert len(b"x" * (8 * MIB)) > len(parts[0])


def trips(parts: Parts) -> None:
    raise KeyError(parts[0][:4])


def never_ends(parts: Parts) -> None:
    while True:
        parts[0].find(b"no such")


def never_ends_and_is_long_to_clean_up(parts: Parts) -> None:
    while True:
        list(range(5_000_000))


def swallows_everything(parts: Parts) -> None:
    try:
        never_ends(parts)
    except Exception:
        raise ValueError("bad") from None


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (compares_all_with_all, "time"),
        (never_ends, "time"),
        (never_ends_and_is_long_to_clean_up, "time"),
        (swallows_everything, "time"),
        (repeats_a_part_for_each_byte, "memory"),
        (holds_much_for_a_moment, "memory"),
        (trips, "KeyError"),
    ],
)
def test_a_planted_defect_is_found(run: object, kind: str) -> None:
    bound = ROOMY if kind == "memory" else SMALL
    with pytest.raises(Finding) as found:
        judge(Target(run, allowed=(ValueError,), bound=bound), INPUT, is_exact=kind == "memory")  # type: ignore[arg-type]
    assert found.value.kind == kind


def test_memory_of_arrow_counts() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(Finding, match=r"^memory.*16\.\d MiB"):
        judge(Target(lambda _: pyarrow.allocate_buffer(16 * MIB), bound=SMALL), INPUT, is_exact=True)


def test_what_is_linear_passes() -> None:
    judge(Target(lambda parts: [parts[0][at : at + 8] for at in range(0, 4096, 8)], bound=SMALL), INPUT, is_exact=True)


def test_a_refusal_passes() -> None:
    judge(Target(trips, allowed=(LookupError,), bound=SMALL), INPUT, is_exact=True)


def test_waiting_costs_nothing() -> None:
    judge(Target(lambda _: time.sleep(0.1), bound=SMALL), INPUT)


def test_the_bound_goes_by_what_an_input_stands_for() -> None:
    target = Target(lambda parts: bytearray(3 * len(parts[0])), lambda data: [data * 1024], bound=SMALL)
    judge(target, INPUT, is_exact=True)


def test_one_slow_call_among_quick_ones_is_not_believed() -> None:
    calls = []

    def slow_once(parts: Parts) -> None:
        calls.append(parts)
        if len(calls) == 1:
            compares_all_with_all([INPUT[:1500]])

    judge(Target(slow_once, bound=SMALL), INPUT)
    assert len(calls) > 1
