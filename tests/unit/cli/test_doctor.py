from pathlib import Path

import pytest

from agent_tools.cli.doctor import check_of, check_of_pool, name_checks
from agent_tools.conformance.findings import LIMITS, Finding, Verdict
from agent_tools.runtime.pool.pools import PoolState


def test_doctor_warns_of_an_open_property_that_is_not_promised_and_names_the_remedy() -> None:
    check = check_of(Finding(LIMITS, "TCP buffers", "open", "unlimited", "host", False, "Only root. Use cgroup v2."))
    assert (check.verdict, check.found, check.advice) == ("warn", "unlimited", "Only root. Use cgroup v2.")


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


@pytest.mark.parametrize(
    ("state", "verdict", "found", "advice"),
    [
        (PoolState(0, {"hit": 1}), "ok", "12 ms from nothing", ""),
        (PoolState(1, {"folder": 1}), "warn", "missed: folder", "on one file system"),
        (PoolState(0, {"failed": 1}, ("No engine",)), "warn", "missed: failed No engine", "started in advance"),
        (PoolState(0, {"ended": 1}), "warn", "missed: ended", "memory"),
        (PoolState(0, {"empty": 1}), "warn", "missed: empty", "slow"),
    ],
)
def test_doctor_says_what_became_of_a_sandbox_made_ahead(
    state: PoolState, verdict: str, found: str, advice: str
) -> None:
    check = check_of_pool(state, 0.012)
    assert check.verdict == verdict
    assert found in check.found
    assert advice in check.advice


def test_doctor_warns_of_the_package_with_nearly_this_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_checks() == []
    about = tmp_path / "agent_tools-1.0.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: agent-tools\nVersion: 1.0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (check,) = name_checks()
    assert (check.verdict, "1.0.1" in check.found) == ("warn", True)
    assert check.advice.startswith("pip uninstall agent-tools;")
