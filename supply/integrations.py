"""The adapters for frameworks, each tried in a venv of its own: `scripts/try integrations NAME...`.

No framework meets another one's pins, and none is installed beside our own tests. For each one its adapter is
type-checked against the framework, and a file of `tests/integrations/` is run: an agent of the framework's own with a
scripted model, the page of the docs, and the suite that the framework publishes, if it does. What a suite asks and a
sandbox does not do by design stands in that file as EXPECTED, by the test's name, with its reason; one that passes all
the same has failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from supply.frameworks import FRAMEWORKS

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venv" / "integrations"
FOLDER = ROOT / "tests" / "integrations"
TRANSPORTS = ("sockets", "stdio")
RUN_SECONDS = 1800
PASSED, FAILED = 0, 1  # exit codes; 2 is argparse's
CHECKERS = ("pytest", "pytest-timeout", "mypy", "types-docker", "types-requests")  # at the versions of our own venv


@dataclass
class Outcome:
    """One run: of the tests over one transport, or of the type checker."""

    framework: str
    what: str
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What did not pass, by name, with the reason."""

    @property
    def is_bad(self) -> bool:
        """True if something failed, or nothing was run."""
        return bool(self.counts["failed"]) or not self.counts["passed"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the frameworks that were named, print the table, and return an exit code."""
    given = read(arguments)
    if not given.names:
        list_frameworks()
        return PASSED
    names = list(FRAMEWORKS) if given.names == ["all"] else given.names
    with ThreadPoolExecutor(given.at_once) as pool:
        outcomes = [run for several in pool.map(lambda name: list(runs(name, given)), names) for run in several]
    show(outcomes)
    is_bad = any(outcome.is_bad or (given.no_skips and outcome.counts["skipped"]) for outcome in outcomes)
    return FAILED if is_bad else PASSED


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/try integrations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="frameworks; 'all' for every one; none: list them")
    parser.add_argument("--transport", choices=TRANSPORTS, action="append", help="over this one; default: sockets")
    parser.add_argument("--what", choices=("tests", "types"), help="this alone; default: both")
    parser.add_argument("--newest", action="store_true", help="with the newest versions instead of the pinned ones")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="try so many frameworks beside one another")
    parser.add_argument("--no-skips", action="store_true", help="take a test that is skipped for one that failed")
    parser.add_argument("-k", dest="only", default="", help="pytest's expression for the tests to run; no type check")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in FRAMEWORKS and given.names != ["all"]]
    if unknown:
        parser.error(f"no framework {unknown[0]!r}; there are {', '.join(FRAMEWORKS)}")
    return given


def list_frameworks() -> None:
    """Print what there is."""
    for name, framework in FRAMEWORKS.items():
        print(f"{name:16} {framework.title} ({', '.join(framework.packages)})")


def runs(name: str, given: argparse.Namespace) -> Iterator[Outcome]:
    """Check one framework's types, and run its tests over each transport."""
    python = ready(name, given)
    if FRAMEWORKS[name].modules and not given.only and given.what != "tests":
        yield typed(name, python)
    for transport in given.transport or TRANSPORTS[:1] if given.what != "types" else ():
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            command = [str(python), *command_line(name, transport, given.only), f"--junit-xml={report.name}"]
            said = subprocess.PIPE if given.at_once > 1 else None
            run = subprocess.run(command, cwd=ROOT, check=False, timeout=RUN_SECONDS, stdout=said, text=True)
            if run.stdout:  # in one piece, since others run beside it
                print(run.stdout, end="", flush=True)
            yield read_report(Path(report.name).read_bytes(), Outcome(name, transport))


def ready(name: str, given: argparse.Namespace) -> Path:
    """Return the Python of a framework's venv, and tell what is in it."""
    start = time.monotonic()
    python = prepared(name, is_newest=given.newest)
    installed = ", ".join(versions(python, FRAMEWORKS[name].packages))
    print(f"integrations: {name} with {installed}; ready in {time.monotonic() - start:.1f} s", flush=True)
    return python


def command_line(name: str, transport: str, only: str) -> list[str]:
    """Return the arguments of Python for one run of the tests."""
    stands_alone = ["-c", str(FOLDER / "pytest.ini"), f"--rootdir={FOLDER}", f"--confcutdir={FOLDER}"]
    options = [*FRAMEWORKS[name].options, f"--transport={transport}", *([f"-k{only}"] if only else [])]
    has_calls = bool(FRAMEWORKS[name].modules or FRAMEWORKS[name].example)
    files = [f"{name.replace('-', '_')}.py", *(["killed.py"] if has_calls and not only else [])]
    return ["-m", "pytest", "-q", *stands_alone, *options, *(str(FOLDER / file) for file in files)]


def typed(name: str, python: Path) -> Outcome:
    """Check the types of its adapters against a framework; what lies below them is checked by scripts/check."""
    modules = [ROOT / "agent_tools" / "integrations" / f"{module}.py" for module in FRAMEWORKS[name].modules]
    cache, python_version = python.parents[1] / "mypy_cache", ".".join(map(str, sys.version_info[:2]))
    how = [f"--config-file={ROOT / 'supply' / 'adapters.ini'}", f"--cache-dir={cache}"]
    how.append(f"--python-version={python_version}")
    start = time.monotonic()
    done = subprocess.run([python, "-m", "mypy", *how, *modules], cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if ": note:" not in line]
    outcome = Outcome(name, "types", seconds=time.monotonic() - start)
    outcome.counts["failed" if done.returncode else "passed"] += 1
    outcome.notes += [f"failed: {line}" for line in lines if done.returncode]
    return outcome


def prepared(name: str, *, is_newest: bool = False) -> Path:
    """Return the Python of a framework's venv, made and filled if need be."""
    framework, venv, uv = FRAMEWORKS[name], VENVS / name, ROOT / ".venv" / "bin" / "uv"
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    ours = f"{ROOT}[{name}]" if framework.modules else f"{ROOT}[{framework.extra}]"
    pinned = [package.split("==")[0] if is_newest else package for package in framework.packages]
    packages = [*pinned, *framework.beside, *(f"{each}=={version(each)}" for each in CHECKERS)]
    how = ["--upgrade"] if is_newest else []
    install: list[str | Path] = [uv, "pip", "install", "--quiet", *how, "--python", python]
    subprocess.run([*install, "-e", ours, *packages], check=True)
    if framework.alone:
        subprocess.run([*install, "--no-deps", *framework.alone], check=True)
    return python


def versions(python: Path, packages: Sequence[str]) -> list[str]:
    """Return what is installed: Python, and the packages by name."""
    names = [package.split("==")[0].split("[")[0] for package in packages]
    code = "import importlib.metadata as m, platform, sys; print('Python', platform.python_version()); "
    code += "[print(name, m.version(name)) for name in sys.argv[1:]]"
    return subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True).stdout.splitlines()


def read_report(xml: bytes, outcome: Outcome) -> Outcome:
    """Count what pytest reports; a report that is not there is a failure."""
    if not xml:
        outcome.counts["failed"] += 1
        outcome.notes.append("failed: pytest ended without a report")
        return outcome
    for case in ET.fromstring(xml).iter("testcase"):  # noqa: S314
        outcome.seconds += float(case.get("time", 0))
        kind, reason = judged(case)
        outcome.counts[kind] += 1
        if kind != "passed":
            outcome.notes.append(f"{kind}: {case.get('name')}: {reason}")
    return outcome


def judged(case: ET.Element) -> tuple[str, str]:
    """Return how one test ended, and why if it did not pass."""
    for child in case:
        reason = (child.get("message") or "").strip().split("\n")[0]
        if child.tag in ("failure", "error"):
            return "failed", reason
        if child.tag == "skipped":
            return ("expected" if child.get("type") == "pytest.xfail" else "skipped"), reason
    return "passed", ""


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table, and below it what did not pass."""
    table = Table("framework", "what", "passed", "failed", "expected", "skipped", "seconds")
    for outcome in outcomes:
        counts = [str(outcome.counts[kind]) for kind in ("passed", "failed", "expected", "skipped")]
        table.add_row(outcome.framework, outcome.what, *counts, f"{outcome.seconds:.1f}")
    console = Console()
    console.print(table)
    for outcome in outcomes:
        for note in outcome.notes:
            console.print(f"{outcome.framework}, {outcome.what}: {note}", markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
