"""Other people's suites for sandboxes, run on ours: `scripts/suites NAME...`.

A suite is a file of `tests/suites/` with a shim of ours and its own tests imported. It runs in a venv of its own, so
that no framework meets another one's pins. What a suite asks and a sandbox does not do by design stands in that file as
EXPECTED, by the test's name, with its reason; one that passes all the same counts as failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venv" / "suites"
FOLDER = ROOT / "tests" / "suites"
TRANSPORTS = ("sockets", "stdio")
SUITE_SECONDS = 1800
PASSED, FAILED = 0, 1  # exit codes; 2 is argparse's
PYTEST = ("pytest==9.2.0", "pytest-timeout==2.4.0")
ASYNCIO = "pytest-asyncio==1.5.0"
AWAITED = ("--asyncio-mode=auto", "--override-ini=asyncio_default_fixture_loop_scope=function")


@dataclass(frozen=True)
class Suite:
    """One suite: what it is, the packages it comes in, and what its pytest needs to be told."""

    title: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """Packages installed without what they need, for files of theirs that need little of it."""


SUITES = {
    "langchain": Suite(
        "langchain_tests' SandboxIntegrationTests, for deepagents' backends",
        # from 0.7 on `BaseSandbox` answers absolute paths and overwrites, which 1.1.9 of the suite refuses
        ("langchain-tests==1.1.9", "deepagents==0.6.12", ASYNCIO),
        AWAITED,
    ),
    "inspect_ai": Suite(
        "Inspect's self_check, for its SandboxEnvironment",
        ("inspect-ai==0.3.285", ASYNCIO),
        AWAITED,
    ),
    "pydantic_ai": Suite(
        "Pydantic AI's WorkspaceBackendSuite, with commands only and with files",
        ("pydantic-ai-slim==2.68.0",),
    ),
    "jupyter_notebooks": Suite(
        "JupyterLab in a browser, papermill, nbconvert and the console, with kernels in sandboxes",
        (
            *("jupyterlab==4.6.6", "papermill==2.7.0", "nbconvert==7.17.2", "jupyter-console==6.6.3"),
            *("nbclient==0.11.0", "playwright==1.65.2"),
        ),
    ),
    "jupyter_servers": Suite(
        "Open WebUI's, AutoGen's and jupyter-kernel-client's clients, of `agent-tools jupyter serve`",
        (
            *("jupyter-kernel-gateway==3.0.1", "jupyter-kernel-client==1.0.2", "autogen-core==0.7.5"),
            *("autogen-ext==0.7.5", "asyncio-atexit==1.0.1", "aiohttp==3.14.5", "websockets==17.4", ASYNCIO),
        ),
        AWAITED,
        ("open-webui==0.12.4",),
    ),
}


@dataclass
class Outcome:
    """One run of a suite over one transport."""

    suite: str
    transport: str
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Tests that did not pass, by name, with the reason."""

    @property
    def is_bad(self) -> bool:
        """True if something failed, or nothing was run."""
        return bool(self.counts["failed"]) or not self.counts["passed"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that were named, print the table, and return an exit code."""
    parser = argparse.ArgumentParser(prog="scripts/suites", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="suites to run; 'all' for every one; none: list them")
    parser.add_argument("--transport", choices=TRANSPORTS, action="append", help="run over this one only")
    parser.add_argument("-k", dest="only", default="", help="pytest's expression for the tests to run")
    given = parser.parse_args(arguments)
    names = list(SUITES) if given.names == ["all"] else given.names
    if unknown := [name for name in names if name not in SUITES]:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    if not names:
        list_suites()
        return PASSED
    outcomes = [run for name in names for run in runs(name, given.transport or TRANSPORTS, given.only)]
    show(outcomes)
    return FAILED if any(outcome.is_bad for outcome in outcomes) else PASSED


def list_suites() -> None:
    """Print what there is."""
    for name, suite in SUITES.items():
        print(f"{name:12} {suite.title} ({', '.join(suite.packages)})")


def runs(name: str, transports: Sequence[str], only: str) -> Iterator[Outcome]:
    """Run one suite over each transport."""
    python = prepared(name)
    print(f"suites: {name} with {', '.join(versions(python, SUITES[name].packages))}", flush=True)
    for transport in transports:
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            command = [str(python), *command_line(name, transport, only), f"--junit-xml={report.name}"]
            subprocess.run(command, cwd=ROOT, check=False, timeout=SUITE_SECONDS)
            yield read_report(Path(report.name).read_bytes(), Outcome(name, transport))


def command_line(name: str, transport: str, only: str) -> list[str]:
    """Return the arguments of Python for one run."""
    stands_alone = ["-c", str(FOLDER / "pytest.ini"), f"--rootdir={FOLDER}", f"--confcutdir={FOLDER}"]
    options = [*SUITES[name].options, "--transport", transport, *(["-k", only] if only else [])]
    return ["-m", "pytest", "-q", *stands_alone, *options, str(FOLDER / f"{name}.py")]


def prepared(name: str) -> Path:
    """Return the Python of a suite's venv, made and filled if need be."""
    venv, uv = VENVS / name, ROOT / ".venv" / "bin" / "uv"
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    packages = [*SUITES[name].packages, *PYTEST]
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*install, "-e", ROOT, *packages], check=True)
    if SUITES[name].alone:
        subprocess.run([*install, "--no-deps", *SUITES[name].alone], check=True)
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
    table = Table("suite", "transport", "passed", "failed", "expected", "skipped", "seconds")
    for outcome in outcomes:
        counts = [str(outcome.counts[kind]) for kind in ("passed", "failed", "expected", "skipped")]
        table.add_row(outcome.suite, outcome.transport, *counts, f"{outcome.seconds:.1f}")
    console = Console()
    console.print(table)
    for outcome in outcomes:
        for note in outcome.notes:
            console.print(f"{outcome.suite}, {outcome.transport}: {note}", markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
