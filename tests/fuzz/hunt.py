"""A hunt in a process of its own, `python -m tests.fuzz.hunt TARGET SECONDS`: atheris makes inputs, the oracle judges.

libFuzzer, which is in atheris, keeps inputs that reach new code in LEARNT, and one that ends the process (memory, a
call that nothing breaks off) in FOUND. A finding does not end it: libFuzzer would end at each, also at the thousandth
of the same defect, and a start takes seconds. So FOUND has the smallest input of each kind and place, in a file that
can be replayed and moved into the corpus. Hypothesis's `fuzz_one_input` in this place judged a third as many inputs a
second; its database tells findings apart by the line that raises, which is the oracle's for all that is slow.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import sys
from pathlib import Path

from tests.fuzz.folders import CORPUS, FOUND, LEARNT
from tests.fuzz.oracle import Finding, Target, judge
from tests.fuzz.targets import target

SLOWNESS = 4.0  # what tracing costs, with room to spare
TRACED = ["agent_tools", "python_multipart", "starlette.formparsers"]
MAX_MEMORY = 3 * 1024**3  # bytes of address space beyond what the libraries take: then it is a MemoryError, and found
SECONDS_OF_ONE = 60  # after which libFuzzer ends the process


class Judge:
    """Judges inputs, as libFuzzer calls it, and keeps what is found in a folder."""

    def __init__(self, reader: Target, folder: Path) -> None:
        self._reader = reader
        self._folder = folder
        self._sizes: dict[str, int] = {}

    def __call__(self, data: bytes) -> None:
        try:
            judge(self._reader, data, slowness=SLOWNESS)
        except Finding as finding:
            self._keep(finding, data)

    def _keep(self, finding: Finding, data: bytes) -> None:
        name = re.sub(r"[^\w.]+", "-", f"{finding.kind}-{finding.where}")
        if name not in self._sizes:
            print(f"found: {self._folder / name}: {finding}", flush=True)
        if len(data) < self._sizes.setdefault(name, len(data) + 1):
            self._sizes[name] = len(data)
            (self._folder / name).write_bytes(data)


def main(name: str, seconds: str) -> None:
    """Hunt for as long as is asked for."""
    import atheris  # is not in .venv

    logging.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with atheris.instrument_imports(include=TRACED):
        reader = target(name)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MAX_MEMORY,) * 2)
    for folder in (LEARNT / name, FOUND / name):
        folder.mkdir(parents=True, exist_ok=True)
    words = LEARNT / f"{name}.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in reader.words))
    options = {
        "max_total_time": seconds,
        "max_len": reader.max_len,
        "timeout": SECONDS_OF_ONE,
        "rss_limit_mb": MAX_MEMORY // 2**20,
        "artifact_prefix": f"{FOUND / name}/",
        "dict": words,
        "entropic_scale_per_exec_time": 1,
        "len_control": 2,
        "report_slow_units": 2 * SECONDS_OF_ONE,  # never: it would keep them beside what is found
    }
    given = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([sys.argv[0], *given, str(LEARNT / name), str(CORPUS / name)], Judge(reader, FOUND / name))
    atheris.Fuzz()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main(*sys.argv[1:])
