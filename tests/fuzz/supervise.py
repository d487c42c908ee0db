"""Hunts in processes of their own, started again until the time is over, and what came of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
LEARNT = ROOT / ".venv-fuzz" / "learnt"
ATHERIS = "atheris==3.0.0"  # wheels for Python 3.11 to 3.13; it is built from source, with clang, for no other
_PACKAGES = ROOT / ".venv-fuzz" / "packages"
_SHORTEST = 2  # seconds a process is worth starting for
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_ARTEFACT = re.compile(r"(crash|oom|timeout|leak)-[0-9a-f]+")


@dataclass
class Report:
    """A hunt in one target."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    processes: int = 0
    coverage: list[int] = field(default_factory=list)
    inputs: tuple[int, int] = (0, 0)  # before and after
    findings: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """For people."""
        first, last = (self.coverage[0], self.coverage[-1]) if self.coverage else (0, 0)
        lines = [
            f"{self.target}: {self.executions:,} executions in {self.seconds / 60:.1f} min"
            f" ({self.executions / max(1.0, self.seconds):,.0f}/s, {self.processes} processes),"
            f" coverage {first} -> {last}, inputs {self.inputs[0]} -> {self.inputs[1]}, {len(self.findings)} findings"
        ]
        for name, count in self.findings.most_common():
            path = (LEARNT / self.target / "findings" / name).relative_to(ROOT)
            lines.append(f"  {name} ({count:,} times)\n    scripts/try fuzz {self.target} --replay {path}")
        return "\n".join(lines)


def install_atheris() -> None:
    """Put the fuzzer beside .venv, so that nothing else ever sees it."""
    stamp = _PACKAGES / ATHERIS
    if not stamp.exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
        ]
        subprocess.run([*pip, "--only-binary=:all:", "--target", _PACKAGES, ATHERIS], check=True)
        stamp.touch()


def supervise(name: str, seconds: int) -> Report:
    """Hunt in a target for so long, however often the process ends before."""
    folder = LEARNT / name
    for each in ("corpus", "findings"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    report, started = Report(name), time.monotonic()
    before = _inputs(name)
    while (left := seconds - (time.monotonic() - started)) >= _SHORTEST:
        _run(report, folder, round(left))
    report.seconds, report.inputs = time.monotonic() - started, (before, _inputs(name))
    for path in (folder / "findings").iterdir():
        if _ARTEFACT.fullmatch(path.name):
            report.findings[path.name] += 1
    return report


def _run(report: Report, folder: Path, seconds: int) -> None:
    tally, log = folder / "tally.json", folder / f"log.{report.processes}"
    tally.unlink(missing_ok=True)
    options = {"--corpus": folder / "corpus", "--seeds": CORPUS / report.target, "--findings": folder / "findings"}
    command = [sys.executable, "-m", "tests.fuzz.hunt", report.target, "--seconds", str(seconds), "--tally", tally]
    command += [part for option in options.items() for part in option]
    environment = {**os.environ, "PYTHONPATH": f"{_PACKAGES}:{ROOT}"}
    with open(log, "wb") as out:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=out, check=False)
    found = json.loads(tally.read_text()) if tally.exists() else {"executions": 0, "findings": {}}
    report.processes += 1
    report.executions += found["executions"]
    report.findings.update(found["findings"])
    report.coverage += [int(match[1]) for match in _PROGRESS.finditer(log.read_text(errors="replace"))]
    if not found["executions"]:
        end = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the hunt in {report.target} ended before its first input:\n{end}")


def _inputs(name: str) -> int:
    return sum(len(os.listdir(path)) for path in (CORPUS / name, LEARNT / name / "corpus") if path.is_dir())
