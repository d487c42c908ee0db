"""Runs E2B's own tests against the wire `e2b`: `python -m supply.e2b_suites FOLDER [SUITE...]`.

FOLDER has clones of E2B's repositories, github.com/e2b-dev/E2B and .../code-interpreter; the tests run with the SDKs
beside them. A test is outside the subset if it asks for something that docs/wires.md says is not there; it runs all the
same, and is counted apart. The exit code is 1 if fewer than nine of ten tests of the subset pass.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from supply.programs import UV, VENVS
from supply.wires import NODE, gateway, npm

LEAST = 0.9
RUN_SECONDS = 3_600
SDK = "E2B/packages/python-sdk"
SUITES = {
    "interpreter-python": ("code-interpreter/python", ("tests",)),
    "interpreter-js": ("code-interpreter/js", ("tests",)),
    "sdk-python": (SDK, tuple(f"tests/{kind}" for kind in (
        "sync/api_sync", "sync/sandbox_sync", "async/api_async", "async/sandbox_async"))),
    "sdk-js": ("E2B/packages/js-sdk", ("tests/api", "tests/sandbox")),
}  # fmt: skip
OUTSIDE = {
    "other languages than Python": r"bash|java|_r\b|_r_|cwd r\b|env_vars/r|js|typescript|_ts_"
    r"|default.?kernels|list.?contexts",
    "systemd": r"systemd",
    "root, and other users": r"create.?context.?with.?options|root|user(name)?\b",
    "snapshots and forks": r"snapshot|fork|filesystem.?only",
    "the network: internet, rules, ports": r"internet|network|host|egress|signing|url|proxy|http.?request",
    "git": r"\bgit\b|sandbox/git",
    "MCP, IAM, secrets": r"mcp|iam|secret",
    "metadata of files": r"metadata.*files|files.*metadata",
}
CONFIG = (
    "import { defineConfig } from 'vitest/config'\n"
    "export default defineConfig({ test: { include: ['tests/**/*.test.ts'], exclude: ['tests/runtimes/**'],"
    " testTimeout: 120_000, hookTimeout: 120_000, maxWorkers: 2, retry: 0 } })\n"
)


def main(arguments: list[str]) -> int:
    """Run the suites of these names, or all; return an exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    clones, counts = Path(arguments[0]).resolve(), Counter[str]()
    settings = ["--package", "e2b-charts", "--set", "pool=2"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tools-try-")))
        url, key = stack.enter_context(gateway(folder, settings))
        given = {"E2B_API_URL": f"{url}/e2b", "E2B_SANDBOX_URL": f"{url}/e2b", "E2B_API_KEY": key}
        given |= {"E2B_VALIDATE_API_KEY": "false", "NO_COLOR": "1"}
        for name in arguments[1:] or SUITES:
            place, parts = SUITES[name]
            report = folder / f"{name}.xml"
            run = by_vitest if name.endswith("js") else by_pytest
            run(clones, place, parts, report, {**os.environ, **given})
            counts += told(name, report)
    share = counts["passed"] / max(1, counts["passed"] + counts["failed"])
    print(f"the subset: {counts['passed']} of {counts['passed'] + counts['failed']} passed ({share:.0%})")
    return int(share < LEAST)


def by_pytest(clones: Path, place: str, parts: tuple[str, ...], report: Path, environment: dict[str, str]) -> None:
    """Run tests in Python, with the SDKs of the clones."""
    venv = VENVS / "e2b-suites"
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, venv], check=True, timeout=600)
    packages = ["pytest", "pytest-asyncio", "pytest-xdist", "pytest-timeout", "python-dotenv"]
    packages += {str(clones / each) for each in (SDK, place)}  # its own version of the base SDK
    subprocess.run([UV, "pip", "install", "-q", "--python", python, *packages], check=True, timeout=1_800)
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--timeout", "120", f"--junitxml={report}", *parts]
    subprocess.run(
        command, cwd=clones / place, env=environment, check=False, stdout=subprocess.DEVNULL, timeout=RUN_SECONDS
    )


def by_vitest(clones: Path, place: str, parts: tuple[str, ...], report: Path, environment: dict[str, str]) -> None:
    """Run tests in JavaScript, with the SDK that stands beside them."""
    clone = clones / place
    npm(clone, "vitest", "dotenv", "msw", "typescript@5", "error-stack-parser-es")
    (clone / "agent-tools.config.mts").write_text(CONFIG)
    vitest = [str(NODE), "node_modules/vitest/vitest.mjs", "run", "--config", "agent-tools.config.mts"]
    command = [*vitest, "--reporter=junit", f"--outputFile={report}", *parts]
    subprocess.run(command, cwd=clone, env=environment, check=False, stdout=subprocess.DEVNULL, timeout=RUN_SECONDS)


def told(name: str, report: Path) -> Counter[str]:
    """Print what became of a suite's tests; count those of the subset that passed and that failed."""
    counts, outside, failures = Counter[str](), Counter[str](), list[str]()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  (written by our own run)
        full = f"{case.get('classname')} {case.get('name')}"
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        why = next((why for why, pattern in OUTSIDE.items() if re.search(pattern, full, re.IGNORECASE)), "")
        if case.find("skipped") is not None:
            continue
        if why:
            outside[why] += 1
            counts["outside"] += 1
        else:
            counts["passed" if problem is None else "failed"] += 1
            if problem is not None:
                failures.append(f"{full}: {' '.join((problem.get('message') or '').split())[:160]}")
    print(f"{name}: {counts['passed']} passed, {counts['failed']} failed, {counts['outside']} outside the subset")
    for why, number in outside.most_common():
        print(f"  outside, {why}: {number}")
    print(*(f"  FAILED {each}" for each in failures), sep="\n", flush=True)
    counts.pop("outside", None)
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
