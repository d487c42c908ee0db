"""Many short rollouts, of which some hang or crash: how many a minute, and that each gets the score it earned.

    .venv/bin/python benchmarks/rollouts.py [--rollouts 2000] [--at-once 4] [--engine docker] [--bad 0.05]
        [--anew kernel] [--timeout 2] [--cluster]

With `--engine ray` the sandboxes are those of a cluster; `--cluster` makes one of three nodes on this machine (and
needs the extra `ray`).

A rollout is two calls that share a variable, and a score: 1 if the second prints the right number. Bad ones hang in a
loop, sleep, end their process, or read address 0, in their first call. What the next rollout finds anew is told by
`--anew`: the `kernel` (a fresh one, and the files of the last rollout are deleted, in the same sandbox: for rollouts
that may trust each other that far), or the `container` (`reset`, with a pool that makes them ahead). Beside it stands
what servers of code for trainers do as a rule: a process `python -c` for each call, with a time limit, no isolation
and no state, so that its second call does the work of both. A score that is not the expected one makes the run fail.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fleet_cluster import cluster
from machine import busy

from agent_tools.machine.owner import Owner
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.sandbox import Sandbox

BAD = (
    "while True: pass",
    "import time; time.sleep(3600)",
    "import os; os._exit(3)",
    "import ctypes; ctypes.string_at(0)",
)

PROGRESS_SECONDS = 15.0
GONE_SECONDS = 30.0
CLEAN = "find . /tmp ~ -mindepth 1 -delete"


@dataclass(frozen=True)
class Rollout:
    """One rollout: the code of its calls, and what the last one prints if all is well."""

    calls: tuple[str, str]
    answer: str
    is_bad: bool


def rollouts(count: int, bad: float, seed: int = 0) -> list[Rollout]:
    """Make rollouts, of which so many (a share) are bad; the same ones for the same seed."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        size = chance.randrange(10, 1000)
        is_bad = chance.random() < bad
        first = f"squares = [n * n for n in range({size})]"
        first = f"{first}\n{chance.choice(BAD)}" if is_bad else first
        made.append(Rollout((first, "print(sum(squares))"), str(sum(n * n for n in range(size))), is_bad))
    return made


class InSandboxes:
    """Scores in sandboxes, one for each worker."""

    def __init__(self, engine: str, timeout: float, anew: str, at_once: int) -> None:
        self._timeout, self._anew = timeout, anew
        self._cfg = {"engine": engine, "checkpoint": False, "pool": at_once if anew == "container" else 0}
        self._idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        self.made: list[Sandbox] = []

    def score(self, rollout: Rollout) -> float:
        """Run the calls of a rollout up to one that is not answered in time, in a sandbox that nobody else has."""
        sandbox = self._taken()
        try:
            printed = ""
            for code in rollout.calls:
                execution = sandbox.run_code(code, timeout=self._timeout)
                if not execution.ok:
                    return 0.0
                printed = execution.stdout
            return float(printed.strip() == rollout.answer)
        finally:
            self._give_back(sandbox)

    def close(self) -> None:
        """Remove the sandboxes."""
        for sandbox in self.made:
            sandbox.close()

    def _taken(self) -> Sandbox:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            self.made.append(Sandbox(self._cfg))
            return self.made[-1]

    def _give_back(self, sandbox: Sandbox) -> None:
        if self._anew == "container":
            sandbox.reset()
        else:
            sandbox.restart()
            sandbox.run_command(CLEAN)
        self._idle.put(sandbox)


def in_processes(timeout: float) -> Callable[[Rollout], float]:
    """Return what scores by processes of this machine's Python."""

    def score(rollout: Rollout) -> float:
        printed = ""
        for number in range(len(rollout.calls)):
            code = "\n".join(rollout.calls[: number + 1])
            try:
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=timeout, check=False)
            except subprocess.TimeoutExpired:
                return 0.0
            if done.returncode:
                return 0.0
            printed = done.stdout.decode()
        return float(printed.strip() == rollout.answer)

    return score


class Course:
    """Scores as they are made: how many so far, how long each took (seconds), and which are wrong. Thread-safe."""

    def __init__(self, title: str, work: list[Rollout]) -> None:
        self._title, self._work = title, work
        self._began, self._told = time.perf_counter(), time.perf_counter()
        self._busy = busy()
        self._lock = threading.Lock()
        self._scores: Counter[float] = Counter()
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self.wrong: list[int] = []

    def note(self, number: int, score: float, seconds: float) -> None:
        """Note a score, and tell from time to time."""
        rollout = self._work[number]
        with self._lock:
            self._scores[score] += 1
            self._seconds[rollout.is_bad].append(seconds)
            if score != float(not rollout.is_bad):
                self.wrong.append(number)
            if time.perf_counter() - self._told > PROGRESS_SECONDS:
                self._told = time.perf_counter()
                print(
                    f"  {self._told - self._began:6.0f} s: {self._scores.total():,} of {len(self._work):,}", flush=True
                )

    def rate(self) -> float:
        """Print the summary; return rollouts a second."""
        seconds = time.perf_counter() - self._began
        rate = len(self._work) / seconds
        print(
            f"{self._title:<34} {rate:7.1f} a second   {self._scores[1.0]:,} scored 1, {self._scores[0.0]:,} scored 0, "
            f"{len(self.wrong)} wrong"
        )
        medians = [statistics.median(times) if times else 0.0 for times in self._seconds.values()]
        cores = (busy() - self._busy) / seconds
        print(
            f"  median {medians[0]:.3f} s, of bad ones {medians[1]:.2f} s; CPU of the whole machine "
            f"{1000 * cores / rate:.0f} ms each, {cores:.1f} of {os.cpu_count()} cores",
            flush=True,
        )
        return rate


def measured(title: str, score: Callable[[Rollout], float], work: list[Rollout], at_once: int) -> float:
    """Score all, print the rate, and return it (rollouts a second).

    Raises:
        AssertionError: a score is not the one that was earned.
    """
    course = Course(title, work)

    def note(number: int) -> None:
        began = time.perf_counter()
        course.note(number, score(work[number]), time.perf_counter() - began)

    with ThreadPoolExecutor(at_once) as workers:
        for _ in workers.map(note, range(len(work))):
            pass
    rate = course.rate()
    assert not course.wrong, f"rollouts {course.wrong[:10]} were not scored as they earned"
    return rate


def left(engine: str) -> int | None:
    """Return how many sandboxes are left once all were closed; None where nobody can tell."""
    runtime = shared_runtime(engine)
    if engine.startswith("ray"):
        from fleet_left import facts  # which loads ray

        return _last(lambda: sum(each.taken for each in facts()))
    if runtime is shared_runtime("docker"):
        shared_runtime("docker").settle()
        return _last(lambda: len(shared_runtime("docker").engine.strays(Owner.current().labels)))
    return None


def _last(count: Callable[[], int]) -> int:
    """Count until there is nothing, for as long as it may take; return the last count."""
    deadline = time.monotonic() + GONE_SECONDS
    while (found := count()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def main() -> None:
    """Read the options, and measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2_000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--bad", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--anew", choices=("kernel", "container"), default="kernel")
    parser.add_argument("--cluster", action="store_true", help="make a cluster of two nodes on this machine")
    given = parser.parse_args()
    with cluster(given.cluster, slots=max(4, given.at_once * 2)):
        compare(given)


def compare(given: argparse.Namespace) -> None:
    """Measure processes, and sandboxes; tell what is left of these."""
    work = rollouts(given.rollouts, given.bad)
    baseline = measured("processes, no isolation, no state", in_processes(given.timeout), work, given.at_once)
    sandboxes = InSandboxes(given.engine, given.timeout, given.anew, given.at_once)
    try:
        rate = measured(f"sandboxes ({given.engine}), with state", sandboxes.score, work, given.at_once)
    finally:
        sandboxes.close()
    print(f"{rate / baseline:.2f}x of the rate of processes")
    shared_runtime(given.engine).close_pools()
    count = left(given.engine)
    print("what is left cannot be told here" if count is None else f"{count} sandboxes left")
    assert not count, "sandboxes are left"


if __name__ == "__main__":
    main()
