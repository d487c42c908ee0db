"""What scripts/try fuzz does: list the readers, hunt, replay one input."""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.folders import ROOT
from tests.fuzz.oracle import Finding, judge
from tests.fuzz.targets import NAMES, target

_EXAMPLES = """examples:
  scripts/try fuzz                          the targets
  scripts/try fuzz preview 60               hunt in one of them for an hour
  scripts/try fuzz --all 60 --at-once 2     an hour in each, two at a time
  scripts/try fuzz preview --replay FILE    judge one input
"""
_ATHERIS = "atheris==3.0.0"  # beside .venv, in uv's cache: it has wheels for Python 3.11 to 3.13 on x86-64 only
_UV = Path(sys.executable).with_name("uv")
_HUNT = [_UV, "run", "--quiet", "--no-project", "--no-build", "--python", sys.executable, "--with", _ATHERIS]
_HUNT += ["python", "-m", "tests.fuzz.hunt"]
_LAST_WORDS = 10  # lines of a process that an input ended
_SHORTEST = 2  # seconds a process is worth starting for


def main(arguments: Sequence[str]) -> int:
    """Do it; 1 where something was found."""
    parser = argparse.ArgumentParser(
        "scripts/try fuzz", epilog=_EXAMPLES, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("target", nargs="?", choices=NAMES, metavar="TARGET", help="a reader of untrusted input")
    parser.add_argument("minutes", nargs="?", type=float, metavar="MINUTES", help="how long to hunt")
    parser.add_argument("--all", type=float, metavar="MINUTES", help="hunt in every target for so long each")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="processes at the same time (default: 1)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="judge one input, without coverage")
    wanted = parser.parse_args(arguments)
    if wanted.all:
        with ThreadPoolExecutor(wanted.at_once) as pool:
            return int(any(list(pool.map(partial(_hunt, minutes=wanted.all), NAMES))))
    if wanted.target is None:
        print("\n".join(f"{name:16} {_summary(name)}" for name in NAMES))
        return 0
    if wanted.replay:
        return _replay(wanted.target, wanted.replay)
    if not wanted.minutes:
        parser.error("say for how many MINUTES, or --replay FILE")
    return int(_hunt(wanted.target, wanted.minutes))


def _summary(name: str) -> str:
    source = (Path(__file__).parent / "targets" / f"{name}.py").read_text()
    return source.partition('"""')[2].partition("\n")[0].removesuffix('"""')


def _replay(name: str, path: Path) -> int:
    logging.disable()
    try:
        judge(target(name), path.read_bytes(), is_exact=True)
    except Finding as finding:
        print(finding)
        return 1
    print(f"{name} stands it.")
    return 0


def _hunt(name: str, minutes: float) -> bool:
    """Hunt in a target for so long, in another process when an input ended one; return whether anything was found."""
    ends, is_found = time.monotonic() + 60 * minutes, False
    while (left := ends - time.monotonic()) >= _SHORTEST:
        command = [*_HUNT, name, f"{left:.0f}"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        lines = done.stdout.decode(errors="replace").splitlines()
        progress = [line for line in lines if re.match(r"#\d", line)]
        others = [line for line in lines if not re.match(r"#\d", line)]
        found = [line for line in others if line.startswith("found: ")]
        ending = others[-_LAST_WORDS:] if done.returncode else []
        last = progress[-1] if progress else "ended before it began"
        print("\n  ".join([f"{name}: {last}", *found, *ending]), flush=True)
        is_found = is_found or bool(found or ending)
        if not progress:
            break
    return is_found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
