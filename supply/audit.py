"""Known vulnerabilities of everything that is pinned: `scripts/try audit`.

pip-audit asks the advisory services. By itself it ends well when a service knows none of the packages or a registry's
mirror leaves advisories out; here a package that nobody answered for is not checked, and that is an outcome of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (
    ROOT / "docker" / "requirements.lock",
    *(ROOT / "docker" / "flavours" / f"{flavour}.lock" for flavour in ("newest", "full", "agent", "office")),
    ROOT / "host.lock",
)
SERVICES = (("pypi",), ("osv",))
SECONDS = 600  # one service may take for one lock
CLEAN, VULNERABLE, NOT_CHECKED = 0, 1, 3  # exit codes; 2 is argparse's


@dataclass(frozen=True)
class Advisory:
    """One known vulnerability of one pinned package."""

    package: str
    version: str
    id: str
    fixed_in: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The answer of a service about a lock: the packages it knows, and their vulnerabilities."""

    service: str
    checked: frozenset[str]
    unchecked: frozenset[str]
    advisories: tuple[Advisory, ...] = ()
    reason: str = ""
    """The reason why packages are unchecked, '' if none is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the locks, print the findings, and return an exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/try audit", description="Print the known vulnerabilities of all pinned packages."
    )
    parser.add_argument(
        "locks", nargs="*", type=Path, default=LOCKS, help="requirement files with hashes; default: the project's own"
    )
    parser.add_argument("--osv-url", help="ask this service, which speaks OSV's API, and no other")
    parser.add_argument("--ignore", action="append", default=[], metavar="ID", help="an advisory that does not apply")
    given = parser.parse_args(arguments)
    services = (("osv", "--osv-url", given.osv_url),) if given.osv_url else SERVICES
    return worst([_audit(lock, services, given.ignore) for lock in given.locks])


def worst(outcomes: Iterable[int]) -> int:
    """Return the exit code for several locks: a known vulnerability counts most."""
    return max(outcomes, key=(CLEAN, NOT_CHECKED, VULNERABLE).index)


def _audit(lock: Path, services: Sequence[tuple[str, ...]], ignored: Sequence[str]) -> int:
    """Ask one service after the other until every package of the lock is answered for."""
    answers: list[Answer] = []
    for service in services:
        answers.append(_ask(lock, service, ignored))
        if not answers[-1].unchecked:
            break
    checked = frozenset[str]().union(*(answer.checked for answer in answers))
    unchecked = frozenset[str]().union(*(answer.unchecked for answer in answers)) - checked
    advisories = sorted({found for answer in answers for found in answer.advisories}, key=lambda found: found.package)
    _say(lock, checked, unchecked, advisories)
    for answer in answers if unchecked else ():
        print(f"  {answer.service} was not reached: {answer.reason}")
    if advisories:
        return VULNERABLE
    return NOT_CHECKED if unchecked or not checked else CLEAN


def _say(lock: Path, checked: Iterable[str], unchecked: Iterable[str], advisories: Sequence[Advisory]) -> None:
    print(
        f"{lock.name}: {len(list(checked))} packages checked, {len(list(unchecked))} NOT CHECKED, "
        f"{len(advisories)} known vulnerabilities"
    )
    for found in advisories:
        fixed = f"fixed in {', '.join(found.fixed_in)}" if found.fixed_in else "no fixed version"
        print(f"  {found.package} {found.version}: {found.id} ({fixed})")


def _ask(lock: Path, service: tuple[str, ...], ignored: Sequence[str]) -> Answer:
    """Have pip-audit ask one service. Its exit code is 1 both for a finding and for its own failure."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--vulnerability-service", *service]
    for name in ignored:
        command += ["--ignore-vuln", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        return answer_of(service[0], json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Answer(service[0], frozenset(), pinned(lock), reason=f"no answer in {SECONDS} seconds")
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        return Answer(service[0], frozenset(), pinned(lock), reason=last[:300])


def answer_of(service: str, report: dict[str, Any]) -> Answer:
    """Read an answer from pip-audit's JSON; a package that it skipped is not checked."""
    skipped = {each["name"]: each["skip_reason"] for each in report["dependencies"] if "skip_reason" in each}
    known = [each for each in report["dependencies"] if "skip_reason" not in each]
    advisories = tuple(
        Advisory(each["name"], each["version"], found["id"], tuple(found["fix_versions"]))
        for each in known
        for found in each["vulns"]
    )
    return Answer(
        service,
        frozenset(each["name"] for each in known),
        frozenset(skipped),
        advisories,
        next(iter(skipped.values()), ""),
    )


def pinned(lock: Path) -> frozenset[str]:
    """Return the names in a lock."""
    lines = lock.read_text().splitlines()
    return frozenset(line.split("==")[0] for line in lines if "==" in line and not line.startswith((" ", "#")))


if __name__ == "__main__":
    sys.exit(main())
