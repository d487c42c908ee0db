"""What the probe says of a sandbox under gVisor: what is open there has a reason, or breaks a promise."""

from __future__ import annotations

from agent_tools.conformance.findings import CATALOGUE, LIMITS, PRIVILEGES, Finding
from agent_tools.conformance.gvisor import _REASONS, _UNSEEN, explained
from agent_tools.conformance.host import RULES


def test_only_open_findings_with_a_reason_are_promised_no_longer() -> None:
    held = Finding(PRIVILEGES, "PID 1", "held", "outlived SIGKILL", "host")
    ended = Finding(PRIVILEGES, "PID 1", "open", "ended by SIGKILL", "host")
    internet = Finding(PRIVILEGES, "internet", "open", "answered", "code")
    found = list(explained([held, ended, internet]))
    assert [each.breaks_a_promise for each in found] == [False, False, True]
    assert (found[0], found[2]) == (held, internet)
    assert "its own sandbox" in found[1].advice


def test_what_the_host_cannot_see_there_is_not_called_held() -> None:
    (found,) = explained([Finding(LIMITS, "empty files in memory", "held", "limited", "host")])
    assert (found.verdict, found.breaks_a_promise) == ("open", False)
    assert "gVisor does not limit" in found.advice


def test_every_reason_is_of_a_finding_of_the_probe() -> None:
    titles = {title for names in CATALOGUE.values() for title in names.values()}
    assert _UNSEEN.keys() <= {rule.name for rule in RULES}
    assert _REASONS.keys() <= titles | {rule.name for rule in RULES} | {"PID 1"}
    kept_by_gvisor_too = {
        "internet",
        "engine socket reachable",
        "host processes",
        "become root",
        "kernel and physical memory",
    }
    assert not _REASONS.keys() & kept_by_gvisor_too
