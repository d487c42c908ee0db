"""Requests in a minute."""

from __future__ import annotations

import pytest

from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.auth import AcceptedKey
from agent_tools.gateway.requests.rate_limit import Rates
from tests.gateway.asking import Clock

USUAL, OWN, FREE = AcceptedKey("a", "usual"), AcceptedKey("b", "own", None, 60), AcceptedKey("c", "free", None, 0)


def are_let_in(rates: Rates, caller: AcceptedKey, number: int) -> int:
    """The number of so many requests at once that are let in."""
    return sum(is_let_in(rates, caller) for _ in range(number))


def is_let_in(rates: Rates, caller: AcceptedKey) -> bool:
    try:
        rates.check(caller)
    except ApiError as exc:
        return exc.status != 429
    return True


def test_a_bucket_is_full_at_first_and_fills_up_within_a_minute() -> None:
    clock = Clock()
    rates = Rates(6, clock)
    assert are_let_in(rates, USUAL, 10) == 6
    clock.now += 9.9
    assert are_let_in(rates, USUAL, 1) == 0
    clock.now += 0.2
    assert are_let_in(rates, USUAL, 3) == 1
    clock.now += 3_600
    assert are_let_in(rates, USUAL, 10) == 6


def test_each_key_has_its_own() -> None:
    rates = Rates(6, Clock())
    assert [are_let_in(rates, caller, 100) for caller in (USUAL, OWN, FREE)] == [6, 60, 100]
    assert are_let_in(Rates(0, Clock()), USUAL, 1_000) == 1_000


def test_whoever_is_sent_away_is_told_when_the_next_one_fits() -> None:
    clock = Clock()
    rates = Rates(6, clock)
    are_let_in(rates, USUAL, 6)
    clock.now += 4
    with pytest.raises(ApiError, match="6 requests in a minute") as caught:
        rates.check(USUAL)
    assert caught.value.headers == {"Retry-After": "6"}


def test_a_limit_that_is_lowered_holds_at_once() -> None:
    clock = Clock()
    rates = Rates(100, clock)
    are_let_in(rates, USUAL, 10)
    assert are_let_in(rates, AcceptedKey("a", "usual", None, 5), 90) == 5


def test_only_owners_of_the_last_minute_are_remembered() -> None:
    clock = Clock()
    rates = Rates(6, clock)
    for number in range(100):
        assert is_let_in(rates, AcceptedKey(f"user {number}", "sign-on"))
        clock.now += 10
        assert is_let_in(rates, USUAL)
    assert len(rates._buckets) <= 7
