"""Parking and waking: variables saved in one sandbox and loaded into another, beside pickle by hand in the same run.

    .venv/bin/python benchmarks/state.py [--rounds 5] [--megabytes 100] [--transport sockets]

By hand is what a user would write into a cell: one `pickle.dump` of a dict of all variables to a file in work_dir, and
`pickle.load` in a fresh kernel. It bounds nothing, loses everything at the first variable that cannot be pickled, and
keeps no function or class of a cell. Three kinds of variables: arrays, frames with text, and plain objects.

Park is `save_to` a file and `close`; wake is a started sandbox, of which the start alone is shown, and `load`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from agent_tools.sandbox import Sandbox

KINDS = {
    "arrays": "import numpy as np\nnames = [f'v{n}' for n in range(10)]\n"
    "for name in names: globals()[name] = np.random.default_rng(0).random(SIZE // 80)",
    "frames": "import numpy as np, pandas as pd\nnames = ['v0', 'v1']\n"
    "for name in names:\n"
    "    rows = SIZE // 2 // 60\n"
    "    numbers = np.random.default_rng(0).random((rows, 4))\n"
    "    globals()[name] = pd.DataFrame(numbers, columns=list('abcd')).assign(s=[f'row {n:012}' for n in range(rows)])",
    "objects": "names = ['v0', 'v1']\n"
    "def row(n): return {'id': n, 'text': f'row {n:012}', 'tags': [n, n + 1]}\n"
    "for name in names: globals()[name] = [row(n) for n in range(SIZE // 100)]",
}
DUMP = "import pickle\nwith open('hand', 'wb') as file: pickle.dump({name: globals()[name] for name in names}, file, 5)"
LOAD = "import pickle\nwith open('hand', 'rb') as file: globals().update(pickle.load(file))"
LOOK = "len(v0)"


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run(sandbox: Sandbox, code: str) -> None:
    execution = sandbox.run_code(code, timeout=300)
    assert execution.ok, execution


def one_round(kind: str, size: int, transport: str, times: dict[str, list[float]], folder: Path) -> int:
    """Measure each way once; return the bytes that were saved."""
    path = folder / "state"
    options = {"transport": transport, "memory": 3 * 2**30}
    with Sandbox(options) as first, Sandbox({**options, "work_dir": str(folder / "work")}) as hand:
        for sandbox in (first, hand):
            run(sandbox, f"SIZE = {size}\n{KINDS[kind]}")
        times["by hand: dump"].append(seconds(lambda: run(hand, DUMP)))

        def park() -> None:
            with open(path, "wb") as file:
                report = first.save_to(file, files=False)
            assert report.is_complete, report
            first.close()

        times["park"].append(seconds(park))
        hand.restart()
        times["by hand: load"].append(seconds(lambda: run(hand, LOAD)))
        with Sandbox(options) as second:
            times["start"].append(seconds(second.start))

            def wake() -> None:
                with open(path, "rb") as file:
                    report = second.load(file)
                assert report.is_complete, report
                run(second, LOOK)

            times["load"].append(seconds(wake))
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--transport", default="sockets", choices=["sockets", "stdio"])
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"load average {load:.1f}, {given.megabytes} MB over {given.transport}, medians of {given.rounds}")
    for kind in KINDS:
        times: dict[str, list[float]] = defaultdict(list)
        size = 0
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(given.rounds):
                size = one_round(kind, given.megabytes * 1_000_000, given.transport, times, Path(folder))
        middle = {name: statistics.median(each) for name, each in times.items()}
        wake = middle["start"] + middle["load"]
        dumped, loaded = middle["park"] / middle["by hand: dump"], middle["load"] / middle["by hand: load"]
        print(
            f"{kind:8} {size / 1e6:4.0f} MB   park {middle['park']:.2f} s ({dumped:.1f}x pickle.dump)   "
            f"wake {wake:.2f} s, of it {middle['start']:.2f} s the start (the rest {loaded:.1f}x pickle.load)"
        )


if __name__ == "__main__":
    main()
