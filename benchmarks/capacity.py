"""How many nodes, how large a pool, and what it costs: measured costs of a session, and a simulation of one node.

    .venv/bin/python benchmarks/capacity.py [--day 1000000] [--live 10000] [--burst 8192] [--working 210] ...

Every number can be replaced by your own: `benchmarks/density.py` measures those of a session on your machine. Sessions
arrive at random (Poisson), a day's peak is `--peak` times its mean; a pool is a base stock that is filled up after each
take (M/G/infinity), which the simulation checks with so many sandboxes made at once as a node can.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from dataclasses import dataclass

BURST_NODES = (4, 16, 64)
SHARES = (0.0, 0.25, 1.0)  # of a burst that are warm


@dataclass(frozen=True)
class Node:
    """A machine: cores, GiB of memory, sandboxes that its engine starts in a second, and its price (USD an hour)."""

    cores: int = 16
    memory: float = 128
    starts: float = 8
    price: float = 1.06
    cpu_share: float = 0.6
    memory_share: float = 0.8


@dataclass(frozen=True)
class Session:
    """A session: MB when idle, MB of its code's data, core-seconds to start and end, calls and core-seconds of each."""

    idle: float = 40
    working: float = 210
    start_core: float = 0.57
    start_seconds: float = 0.5
    calls: float = 8
    call_core: float = 0.25

    @property
    def core_seconds(self) -> float:
        """Of the whole session."""
        return self.start_core + self.calls * self.call_core


@dataclass(frozen=True)
class Plan:
    """Nodes for a load, one of them spare, and what each of three things would need alone."""

    nodes: int
    by_memory: float
    by_cpu: float
    by_starts: float
    pool: int
    cost_a_day: float


def plan(rate: float, live: int, session: Session, node: Node, misses: float = 0.001) -> Plan:
    """Return what a peak of `rate` sessions a second and `live` at the same time needs."""
    by_memory = live * (session.idle + session.working) / 1024 / (node.memory * node.memory_share)
    by_cpu = rate * session.core_seconds / (node.cores * node.cpu_share)
    by_starts = rate / node.starts
    nodes = max(1, math.ceil(max(by_memory, by_cpu, by_starts)) + 1)
    pool = pool_for(rate / nodes, session.start_seconds, misses)
    return Plan(nodes, by_memory, by_cpu, by_starts, pool, nodes * node.price * 24)


def pool_for(rate: float, make: float, misses: float) -> int:
    """Return the smallest pool that is empty for at most this share of arrivals, at `make` seconds for one more."""
    size = 1
    while poisson_tail(rate * make, size) > misses:
        size += 1
    return size


def poisson_tail(mean: float, least: int) -> float:
    """Return the probability of `least` or more."""
    term = total = math.exp(-mean)
    for number in range(1, least):
        term *= mean / number
        total += term
    return max(0.0, 1 - total) if least > 0 else 1.0


def waits(arrivals: list[float], make: float, makers: int, pool: int) -> list[float]:
    """Return the seconds that each arrival waits at one node, sorted, where one more is made for each that is taken."""
    ready, free, found = [0.0] * pool, [0.0] * makers, []
    for arrival in arrivals:
        done = max(arrival, heapq.heappop(free)) + make
        heapq.heappush(free, done)
        heapq.heappush(ready, done)
        found.append(max(0.0, heapq.heappop(ready) - arrival))
    return sorted(found)


def arrivals_at(rate: float, seconds: float, seed: int = 1) -> list[float]:
    """Return random moments, `rate` a second on average."""
    rng, at, found = random.Random(seed), 0.0, list[float]()
    while (at := at + rng.expovariate(rate)) < seconds:
        found.append(at)
    return found


def main() -> None:
    """Print both tables."""
    given = _read()
    node = Node(given.cores, given.memory, given.starts, given.price)
    session = Session(given.idle, given.working, given.start_core, given.start_seconds, given.calls, given.call_core)
    makers = max(1, int(node.starts * session.start_seconds))
    rate = given.day / 86_400 * given.peak
    found = plan(rate, given.live, session, node)
    waited = waits(arrivals_at(rate / found.nodes, 3_600), session.start_seconds, makers, found.pool)
    missed = sum(wait > 0 for wait in waited) / max(1, len(waited))
    print(f"{given.day:,} sessions a day, {rate:.1f}/s at the peak, {given.live:,} at the same time:")
    alone = f"memory {found.by_memory:.1f}, CPU {found.by_cpu:.1f}, starts {found.by_starts:.1f}"
    print(f"  {found.nodes} nodes with one spare ({alone})")
    print(f"  {found.pool} warm on each, {found.pool * found.nodes} in all; simulated: {missed:.2%} find none")
    print(f"  ${found.cost_a_day:,.0f} a day, ${found.cost_a_day / given.day:.5f} a session")
    print(f"{given.burst:,} sessions at once:")
    for nodes in BURST_NODES:
        each = math.ceil(given.burst / nodes)
        last = [waits([0.0] * each, session.start_seconds, makers, int(each * share))[-1] for share in SHARES]
        told = ", ".join(f"{share:.0%} warm {wait:.1f} s" for share, wait in zip(SHARES, last))
        print(f"  {nodes} nodes, the last one after: {told}")


def _read() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--day", type=int, default=1_000_000, help="sessions a day")
    parser.add_argument("--live", type=int, default=10_000, help="sessions at the same time, at the peak")
    parser.add_argument("--peak", type=float, default=3.0, help="the peak, in means")
    parser.add_argument("--burst", type=int, default=8_192, help="sessions that are opened at once")
    for name, of in (("cores", Node), ("memory", Node), ("starts", Node), ("price", Node)):
        parser.add_argument(f"--{name}", type=type(getattr(of(), name)), default=getattr(of(), name), help="of a node")
    usual = Session()
    for name in ("idle", "working", "start_core", "start_seconds", "calls", "call_core"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=getattr(usual, name), help="of a session")
    return parser.parse_args()


if __name__ == "__main__":
    main()
