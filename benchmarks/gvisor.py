"""What is slower under gVisor: the same work under two OCI runtimes of one engine, in turn.

    scripts/try gvisor --benchmark
    DOCKER_HOST=... .venv/bin/python benchmarks/gvisor.py [--rounds 5] [--runtimes runc runsc]

Both go over stdio, the transport of gVisor. `from the pool` is the first cell of an instance whose sandbox was ready.
The numbers are the best of all rounds, in milliseconds, since a busy machine only adds to them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable

from agent_tools.tools import CodeInterpreter

CELLS = {
    "warm call": "1",
    "import of pandas": "import pandas",
    "figure": "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()",
    "1,000 small files": "import os\nfor n in range(1000):\n    with open(f'f{n}', 'w') as f: f.write('x')\n"
    "for n in range(1000): os.unlink(f'f{n}')",
    "program started": "import subprocess; subprocess.run(['/bin/true'])",
    "kernel killed and replaced": "os._exit(1)",
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runtimes", nargs=2, default=("runc", "runsc"))
    given = parser.parse_args()
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(given.rounds):
        for runtime in given.runtimes:
            for name, seconds in _round(runtime):
                times[name, runtime].append(seconds)
    first, second = given.runtimes
    print(f"load {os.getloadavg()[0]:.1f}, {given.rounds} rounds, the best of each in ms\n")
    print(f"| | {first} | {second} | times |\n|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in times):
        one, other = (min(times[name, runtime]) * 1000 for runtime in given.runtimes)
        print(f"| {name} | {one:,.1f} | {other:,.1f} | {other / one:.1f} |")


def _round(runtime: str) -> list[tuple[str, float]]:
    """Return the seconds of each kind of work."""
    found = []
    with CodeInterpreter(runtime=runtime, transport="stdio") as tool:
        found.append(("cold: container, kernel, first cell", _seconds(lambda: tool.call("import os"))))
        found += [(name, _seconds(lambda code=code: tool.call(code))) for name, code in CELLS.items()]  # type: ignore[misc]
    with CodeInterpreter(runtime=runtime, transport="stdio", pool=1) as tool:
        if not tool.as_sandbox.prepare_pool(60):
            raise SystemExit(f"no sandbox could be made ahead under {runtime}")
        found.append(("from the pool", _seconds(lambda: tool.call("1"))))
    return found


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
