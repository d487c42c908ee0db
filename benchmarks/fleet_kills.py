"""Opens and closes over a cluster of three nodes while parts of it are killed: what callers saw, and what was left.

Theory of operation
    Two callers, threads of this process and those of another one (fleet_caller.py), use one sandbox after the other.
    After about so many uses, at a random moment, one thing is killed: the process of a node, the other caller, or all
    workers of one node. A caller that was killed is followed by another one, which does what was left to do.

    All that is started has a private folder for temporary files and run directories, by which everything that is left
    can be told from what others have on the machine: containers by what they mount, processes by their environment.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fleet_caller import ANSWERED, HANG_SECONDS, KINDS, Watch, use, use_all
from fleet_left import kill, left_in_cluster, left_on_machine, own_folder, pids, until
from machine import busy, children, command, descriptors

from agent_tools.runtime.ray_runtime import ray_runtime
from agent_tools.runtime.runtime import Runtime
from tests.integrations.cluster import RayCluster

PROGRESS_SECONDS = 15.0
NODE, CALLER, WORKERS = "node's process", "caller", "workers"


@dataclass(frozen=True)
class Plan:
    """A run: so many uses, one kill after about so many of them."""

    opens: int
    kill_every: int
    threads: int = 4
    slots: int = 8


class Seen:
    """What callers saw, by kind. Thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.bad: list[str] = []
        self._lock = threading.Lock()

    def tell(self, seen: str) -> None:
        """Count one use."""
        with self._lock:
            self.counts[seen if seen in KINDS else "bad"] += 1
            if seen not in KINDS:
                self.bad.append(seen)

    @property
    def total(self) -> int:
        """All uses so far."""
        return self.counts.total()

    def words(self) -> str:
        """Return the counts as one line."""
        kinds = ", ".join(f"{KINDS[kind] or kind} {self.counts[kind]:,}" for kind in KINDS)
        killed = ", ".join(f"{what} {self.killed[what]}" for what in (NODE, CALLER, WORKERS))
        return f"{kinds}, bad {self.counts['bad']:,}; killed: {killed}"


class OtherCaller:
    """The caller that is a process, and its successors."""

    def __init__(self, address: str, opens: int, threads: int, seen: Seen) -> None:
        self._address, self._left, self._threads, self._seen = address, opens, threads, seen
        self._process: subprocess.Popen[str] | None = None
        self._told_at = time.monotonic()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def silent(self) -> float:
        """Seconds since it last told of something; 0 once all is done."""
        return time.monotonic() - self._told_at if self._thread.is_alive() else 0.0

    def kill(self) -> bool:
        """Kill the process, if it has begun to work; return whether it was there."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        process.kill()
        return True

    def join(self) -> None:
        """Wait until all is done."""
        self._thread.join()

    def _follow(self) -> None:
        while self._left > 0:
            words = [self._address, str(self._left), str(self._threads)]
            command = [sys.executable, str(Path(__file__).with_name("fleet_caller.py")), *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout
                for line in process.stdout:
                    self._process, self._left, self._told_at = process, self._left - 1, time.monotonic()
                    self._seen.tell(line.strip())
            self._process = None
            if process.returncode not in (0, -signal.SIGKILL):
                self._seen.tell(f"the other caller ended with {process.returncode}")
                return


class Killer:
    """Kills one thing after about so many uses."""

    def __init__(self, plan: Plan, nodes: RayCluster, other: OtherCaller, seen: Seen) -> None:
        self._nodes, self._other, self._seen = nodes, other, seen
        self._every, self._rng = plan.kill_every, random.Random(plan.opens)
        self._next = self._soon()
        self._kinds = {NODE: self._node, CALLER: other.kill, WORKERS: self._workers}

    def look(self) -> None:
        """Kill something, if it is time to."""
        if self._seen.total < self._next:
            return
        self._next += self._soon()
        time.sleep(self._rng.uniform(0, 1))
        what = self._rng.choice(list(self._kinds))
        if self._kinds[what]():
            self._seen.killed[what] += 1

    def _soon(self) -> int:
        return max(1, round(self._every * self._rng.uniform(0.5, 1.5)))

    def _node(self) -> bool:
        found = pids()
        return bool(found) and kill(self._rng.choice(found))

    def _workers(self) -> bool:
        node = self._rng.choice([self._nodes.head, *self._nodes.workers])
        raylet = node.all_processes["raylet"][0].process.pid
        named = {pid: command(pid).split(" ")[0] for pid in children(raylet)}
        workers = [pid for pid, name in named.items() if name.startswith("ray::") and not name.endswith("Agent")]
        return sum(map(kill, workers)) > 0


def run(plan: Plan) -> bool:
    """Do all of it; return whether nothing was left, nothing hung, and no answer was wrong."""
    import ray

    with own_folder() as scratch:
        nodes = RayCluster(plan.slots)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        runtime = ray_runtime()
        use(runtime)
        until(lambda: len(pids()) == nodes.count, 120)
        before = descriptors(os.getpid())
        is_good = opens_and_kills(plan, nodes, runtime)
        left = left_in_cluster(runtime, nodes.count, scratch, before)
        runtime.close_all()
        ray.shutdown()
        nodes.cluster.shutdown()
        left += left_on_machine(scratch)
    print(f"left: {'; '.join(left) or 'nothing'}")
    return is_good and not left


def opens_and_kills(plan: Plan, nodes: RayCluster, runtime: Runtime) -> bool:
    """Use sandboxes while parts are killed, and tell of it; return whether all that was seen may be seen."""
    seen, watch = Seen(), Watch()
    other = OtherCaller(nodes.address, plan.opens // 2, plan.threads, seen)
    here = threading.Thread(
        target=use_all, args=(runtime, plan.opens - plan.opens // 2, plan.threads, seen.tell, watch), daemon=True
    )
    began, busy_before, killer = time.monotonic(), busy(), Killer(plan, nodes, other, seen)
    here.start()
    told, hangs = began, False
    while (seen.total < plan.opens and (here.is_alive() or other.silent())) and not hangs:
        time.sleep(0.1)
        killer.look()
        hangs = max(watch.longest(), other.silent()) > HANG_SECONDS
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            _progress(seen, told - began, busy() - busy_before)
    _progress(seen, time.monotonic() - began, busy() - busy_before)
    if hangs:
        print(f"a use hangs: {HANG_SECONDS:g} s without an answer")
    for each in seen.bad[:10]:
        print(f"bad: {each}")
    return not hangs and not seen.bad and seen.counts[ANSWERED] > 0


def _progress(seen: Seen, seconds: float, spent: float) -> None:
    cores = f"{spent / seconds:.1f} of {os.cpu_count()} cores"
    each = f"CPU of the whole machine {spent / max(1, seen.total):.2f} s each, {cores}"
    rate = f"{seen.total:,} uses, {seen.total / seconds:.2f}/s"
    print(f"{seconds:7.0f} s: {rate}; {seen.words()}; {each}; load {os.getloadavg()[0]:.0f}", flush=True)
