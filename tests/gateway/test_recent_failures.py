"""The last failures of a gateway: each kind once, those of one key among those of others."""

from __future__ import annotations

from agent_tools.gateway.recent_failures import MAX_FAILURES, MAX_OF_KEY, MAX_REASON, RecentFailures
from agent_tools.gateway.requests.api_errors import ApiError, invalid


def test_a_key_with_many_failures_hides_no_others_and_the_list_is_bounded() -> None:
    failures = RecentFailures(lambda: 5.0)
    failures.record("died", "memory", "alice", container="c")
    for number in range(1_000):
        failures.record("502", f"reason {number}\n{'x' * 1_000}", "loud", user=f"u{number}")
    alice, *_ = (each for each in failures.all() if each["key"] == "alice")
    assert alice == {
        "key": "alice",
        "user": "",
        "kind": "died",
        "reason": "memory",
        "at": 5.0,
        "count": 1,
        "container": "c",
    }
    loud = [str(each["reason"]) for each in failures.all() if each["key"] == "loud"]
    assert (len(loud), loud[0][:10], max(map(len, loud))) == (MAX_OF_KEY, "reason 999", MAX_REASON)
    assert "\n" not in loud[0]
    for number in range(1_000):
        failures.record("502", "reason", f"key-{number}")
    assert len(failures.all()) == MAX_FAILURES


def test_a_failure_counts_once_and_those_of_clients_do_not() -> None:
    failures = RecentFailures()
    error = ApiError(503, "busy")
    for each in (error, error, ApiError(503, "busy"), invalid("no")):
        failures.refused(each, "alice")
    assert [(each["kind"], each["count"]) for each in failures.all()] == [("503", 2)]
