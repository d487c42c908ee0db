"""A hunt in a process of its own: atheris makes inputs that reach new code, the oracle judges each.

A finding does not end it; an input that ends the process (memory, a call that nothing breaks off) is left behind in a
file, and whoever started this one starts another.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import sys
import time
from pathlib import Path

import atheris

from tests.fuzz.findings import Findings
from tests.fuzz.oracle import Finding, Target, judge
from tests.fuzz.targets import target

SLOWNESS = 4.0  # what tracing costs, with room to spare
TRACED = ["agent_tools", "python_multipart", "starlette.formparsers"]
MAX_MEMORY = 3 * 1024**3  # bytes of address space beyond what the libraries take: then it is a MemoryError, and found
SECONDS_OF_ONE = 60  # after which libFuzzer ends the process
SAVE_EVERY = 1.0  # seconds


class Hunt:
    """Judges inputs until its time is over, and keeps a tally in a file."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        self._target: Target = _instrumented(wanted.target)
        self._findings = Findings(wanted.findings)
        self._tally = wanted.tally
        self._started = self._saved = time.monotonic()
        self._count = 0

    def judge(self, data: bytes) -> None:
        """One input, as libFuzzer calls it."""
        self._count += 1
        try:
            judge(self._target, data, slowness=SLOWNESS)
        except Finding as finding:
            if self._findings.add(finding, data):
                seconds = time.monotonic() - self._started
                print(f"found after {seconds:.0f} s: {finding}", file=sys.stderr, flush=True)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write down how far it is: this process may end at any input."""
        self._saved = time.monotonic()
        tally = {"executions": self._count, "seconds": self._saved - self._started, "findings": self._findings.counts}
        self._tally.write_text(json.dumps(tally))


def _instrumented(name: str) -> Target:
    with atheris.instrument_imports(include=TRACED):
        return target(name)


def main() -> None:
    """Hunt for as long as is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int)
    for folder in ("--corpus", "--seeds", "--findings", "--tally"):
        parser.add_argument(folder, type=Path)
    wanted = parser.parse_args()
    logging.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hunt = Hunt(wanted)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MAX_MEMORY,) * 2)
    words = wanted.findings.with_suffix(".dict")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in hunt._target.words))
    options = {
        "max_total_time": wanted.seconds,
        "max_len": hunt._target.max_len,
        "timeout": SECONDS_OF_ONE,
        "rss_limit_mb": MAX_MEMORY // 2**20,
        "artifact_prefix": f"{wanted.findings}/",
        "dict": words,
        "entropic_scale_per_exec_time": 1,
        "len_control": 2,
        "report_slow_units": SECONDS_OF_ONE,
    }
    wanted.findings.mkdir(parents=True, exist_ok=True)
    given = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *given, str(wanted.corpus), str(wanted.seeds)], hunt.judge)
    with contextlib.suppress(SystemExit):
        atheris.Fuzz()
    hunt.save()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
