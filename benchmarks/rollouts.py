"""Many short rollouts, of which some hang or crash: how many a minute, and that each gets the score it earned.

    .venv/bin/python benchmarks/rollouts.py [--rollouts 2000] [--at-once 4] [--engine docker] [--bad 0.05]
        [--anew kernel] [--timeout 2]

A rollout is two calls that share a variable, and a score: 1 if the second prints the right number. Bad ones hang in a
loop, sleep, end their process, or read address 0, in their first call. What the next rollout finds anew is told by
`--anew`: the `kernel` (a fresh one, and the files of the last rollout are deleted, in the same sandbox: for rollouts
that may trust each other that far), or the `container` (`reset`, with a pool that makes them ahead). Beside it stands
what servers of code for trainers do as a rule: a process `python -c` for each call, with a time limit, no isolation
and no state, so that its second call does the work of both. A score that is not the expected one makes the run fail.
"""

from __future__ import annotations

import argparse
import queue
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agent_tools.runtime.host.owner import Owner
from agent_tools.runtime.runtime import default_runtime
from agent_tools.sandbox import Sandbox

BAD = (
    "while True: pass",
    "import time; time.sleep(3600)",
    "import os; os._exit(3)",
    "import ctypes; ctypes.string_at(0)",
)

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


def measured(title: str, score: Callable[[Rollout], float], work: list[Rollout], at_once: int) -> float:
    """Score all, print the rate, and return it (rollouts a second).

    Raises:
        AssertionError: a score is not the one that was earned.
    """
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as workers:
        scores = list(workers.map(score, work))
    seconds = time.perf_counter() - began
    wrong = [index for index, rollout in enumerate(work) if scores[index] != float(not rollout.is_bad)]
    counts = Counter(scores)
    rate = len(work) / seconds
    print(f"{title:<34} {rate:7.1f} a second   {counts[1.0]:,} scored 1, {counts[0.0]:,} scored 0, {len(wrong)} wrong")
    assert not wrong, f"rollouts {wrong[:10]} were not scored as they earned"
    return rate


def main() -> None:
    """Measure both, and count what is left behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2_000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--bad", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--anew", choices=("kernel", "container"), default="kernel")
    given = parser.parse_args()
    work = rollouts(given.rollouts, given.bad)
    baseline = measured("processes, no isolation, no state", in_processes(given.timeout), work, given.at_once)
    sandboxes = InSandboxes(given.engine, given.timeout, given.anew, given.at_once)
    try:
        rate = measured(f"sandboxes ({given.engine}), with state", sandboxes.score, work, given.at_once)
    finally:
        sandboxes.close()
    print(f"{rate / baseline:.2f}x of the rate of processes")
    if given.engine == "docker":
        default_runtime().settle()
        left = default_runtime().engine.strays(Owner.current().labels)
        print(f"{len(left)} containers left")


if __name__ == "__main__":
    main()
