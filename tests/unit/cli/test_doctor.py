import pytest

from agent_tools.cli.doctor import check_of
from agent_tools.conformance.finding import LIMITS, Finding, Verdict


@pytest.mark.parametrize(
    ("found", "verdict", "advice"),
    [
        ("held", "ok", ""),
        ("open", "fail", "Do not run code you do not trust"),
        ("unknown", "warn", "Run doctor on the engine's own host"),
        ("info", "ok", ""),
    ],
)
def test_doctor_shows_a_claim_of_the_probe_with_its_advice(found: Verdict, verdict: str, advice: str) -> None:
    check = check_of(Finding(LIMITS, "memory", found, "2048 MiB set", "host"))
    assert (check.name, check.verdict, check.found) == ("memory", verdict, "2048 MiB set")
    assert advice in check.advice
    assert bool(check.advice) == bool(advice)
