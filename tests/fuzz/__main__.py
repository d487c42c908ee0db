"""What scripts/try fuzz does: list the readers, hunt, replay one input, and take what was learnt into the corpus."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.distil import distil
from tests.fuzz.oracle import Finding, judge
from tests.fuzz.supervise import CORPUS, LEARNT, Report, install_atheris, supervise
from tests.fuzz.targets import NAMES, target

_EXAMPLES = """examples:
  scripts/try fuzz                          the targets
  scripts/try fuzz preview 60               hunt in one of them for an hour
  scripts/try fuzz --all 60 --at-once 2     an hour in each, two at a time
  scripts/try fuzz preview --replay FILE    judge one input
  scripts/try fuzz preview --distil         take what was learnt of the code into tests/fuzz/corpus, as few inputs as do
"""


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
    parser.add_argument("--distil", action="store_true", help="keep of what was learnt what reaches new code")
    wanted = parser.parse_args(arguments)
    logging.disable()
    if wanted.all:
        return _hunt(NAMES, wanted.all, wanted.at_once)
    if wanted.target is None:
        print("\n".join(f"{name:16} {_summary(name)}" for name in NAMES))
        return 0
    if wanted.replay:
        return _replay(wanted.target, wanted.replay)
    if wanted.distil:
        print(distil(target(wanted.target), CORPUS / wanted.target, LEARNT / wanted.target / "corpus"))
        return 0
    if not wanted.minutes:
        parser.error("say for how many MINUTES, or --replay FILE, or --distil")
    return _hunt([wanted.target], wanted.minutes, 1)


def _summary(name: str) -> str:
    source = (Path(__file__).parent / "targets" / f"{name}.py").read_text()
    return source.partition('"""')[2].partition("\n")[0].removesuffix('"""')


def _replay(name: str, path: Path) -> int:
    try:
        judge(target(name), path.read_bytes(), is_exact=True)
    except Finding as finding:
        print(finding)
        return 1
    print(f"{name} stands it.")
    return 0


def _hunt(names: Sequence[str], minutes: float, at_once: int) -> int:
    install_atheris()
    with ThreadPoolExecutor(at_once) as pool:
        reports: list[Report] = []
        for report in pool.map(partial(supervise, seconds=round(minutes * 60)), names):
            print(report.text, flush=True)
            reports.append(report)
    return int(any(report.findings for report in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
