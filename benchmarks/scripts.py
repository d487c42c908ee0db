"""Scripts by SandboxFusion's API: how many a second, beside bare processes and `docker run`, and whether all end right.

    .venv/bin/python benchmarks/scripts.py [--at-once 1 8 32 128] [--seconds 8] [--places 8]
    .venv/bin/python benchmarks/scripts.py --check 10000 [--at-once 128] [--bad 0.05] [--path /shared]

A script adds up some squares and prints the sum. `python -c` is a process of this machine, without any isolation;
`docker run` is a fresh container of the same image, by the command; `sealed` is the wire with a container for each
script, out of a pool; `shared` is the wire where the scripts of one key are processes in one container. All are
measured in turn in one run, so their ratios can be compared between machines.

With `--check` so many scripts run, of which a share hangs, crashes or floods its output. The run fails if one of them
is not answered as it should be, or if a container, a process or a folder is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx

from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner
from agent_tools.runtime.runtime import docker_runtime
from agent_tools.sandbox import Sandbox

TIMEOUT = 10.0  # seconds that a script of the check may run
GONE_SECONDS = 60.0
PATIENCE = 3_600.0  # of the client
LOOK = "sleep 1; ls -d ../s-*; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done | grep -c [m]ain.py"


@dataclass(frozen=True)
class Script:
    """A script, and what tells a right answer."""

    code: str
    is_right: Callable[[dict[str, Any]], bool]


def ends(status: str, code: int | None, least: int = 0) -> Callable[[dict[str, Any]], bool]:
    """Return the test of an answer: how the script ended, and that so much of its output is there, at most a MiB."""

    def is_right(ran: dict[str, Any]) -> bool:
        return (ran["status"], ran["return_code"]) == (status, code) and least <= len(ran["stdout"]) < 1_100_000

    return is_right


BAD = (
    Script("while True: pass", ends("TimeLimitExceeded", None)),
    Script("import time; time.sleep(3600)", ends("TimeLimitExceeded", None)),
    Script("import signal; signal.pthread_sigmask(0, range(1, 32))\nwhile True: pass", ends("TimeLimitExceeded", None)),
    Script("import os; os._exit(3)", ends("Finished", 3)),
    Script("import ctypes; ctypes.string_at(0)", ends("Finished", 139)),
    Script("import os; os.kill(os.getpid(), 9)", ends("Finished", 137)),
    Script("print('x' * 5_000_000)", ends("Finished", 0, 1_000_000)),
    Script("while True: print('x' * 10_000)", ends("TimeLimitExceeded", None, 1_000_000)),
)


def good(size: int) -> Script:
    """Return a script that adds up squares."""
    expected = f"{sum(n * n for n in range(size))}\n"
    return Script(
        f"print(sum(n * n for n in range({size})))", lambda ran: (ran["stdout"], ran["return_code"]) == (expected, 0)
    )


class Wire:
    """A gateway with the wire, in a process of its own, and a client of it."""

    def __init__(self, url: str, pid: int) -> None:
        self._client = httpx.Client(base_url=f"{url}/sandboxfusion", timeout=PATIENCE, limits=httpx.Limits())
        owner = Owner(Owner.current().host, pid, start_time(pid) or 0)
        self._labels = owner.labels

    def run(self, code: str, path: str = "", language: str = "python") -> dict[str, Any]:
        """Run a script; return how it ended."""
        given = {"code": code, "language": language, "run_timeout": TIMEOUT}
        answer = self._client.post(f"{path}/run_code", json=given).raise_for_status().json()
        return dict(answer.get("run_result") or {"status": answer["message"], "return_code": None, "stdout": ""})

    def containers(self) -> int:
        """Count the containers of the gateway."""
        return len(docker_runtime().engine.strays(self._labels))


@contextlib.contextmanager
def serving(places: int, pool: int) -> Iterator[Wire]:
    """Have a gateway with the wire; its containers are gone at the end, or the run fails."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="agent-tools-scripts-") as folder:
        command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", "http://127.0.0.1:9/v1"]
        command += ["--wire", "sandboxfusion", "--port", str(port), "--data-dir", f"{folder}/data"]
        command += ["--set", f"max_sandboxes={places}", "--set", f"pool={pool}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            url = f"http://127.0.0.1:{port}"
            while process.poll() is None:
                with contextlib.suppress(httpx.HTTPError):
                    httpx.get(f"{url}/health")
                    break
                time.sleep(0.05)
            wire = Wire(url, process.pid)
            try:
                yield wire
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
        assert waited(wire.containers, 0) == 0, "containers are left after the gateway"


def waited(found: Callable[[], int], most: int) -> int:
    """Return a number once it is at most `most`, or after some time."""
    deadline = time.monotonic() + GONE_SECONDS
    while (now := found()) > most and time.monotonic() < deadline:
        time.sleep(0.2)
    return now


def rate(run: Callable[[int], object], at_once: int, seconds: float) -> float:
    """Return how many scripts a second end, with so many at once, over about so many seconds."""
    numbers, began = count(1), time.perf_counter()

    def work(_: int) -> int:
        done = 0
        while not done or time.perf_counter() < began + seconds:
            run(next(numbers))
            done += 1
        return done

    with ThreadPoolExecutor(at_once) as pool:
        done = sum(pool.map(work, range(at_once)))
    return done / (time.perf_counter() - began)


def compare(given: argparse.Namespace) -> None:
    """Print the rates of all, for each number at once."""
    with tempfile.TemporaryDirectory() as folder, Sandbox({"work_dir": folder}) as sandbox:
        sandbox.start()
        container = sandbox.container
        assert container
        inspect = ["docker", "inspect", "-f", "{{.Config.Image}}", container.id]
        image = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.strip()

    def process(command: list[str]) -> Callable[[int], object]:
        return lambda n: subprocess.run([*command, good(n).code], capture_output=True, check=True)

    docker = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c"]
    with serving(given.places, given.places) as wire:

        def by(path: str) -> Callable[[int], object]:
            def run(n: int) -> None:
                script = good(n)
                answer = wire.run(script.code, path)
                assert script.is_right(answer), answer

            return run

        ways = {"python -c": process([sys.executable, "-c"]), "docker run": process(docker), "sealed": by("")}
        ways["shared"] = by("/shared")
        print(
            f"{'at once':>8}", *(f"{name:>12}" for name in ways), "   sealed/docker run   shared/python -c", flush=True
        )
        for at_once in given.at_once:
            found = {name: rate(run, at_once, given.seconds) for name, run in ways.items()}
            ratios = found["sealed"] / found["docker run"], found["shared"] / found["python -c"]
            shown = " ".join(f"{each:12.1f}" for each in found.values())
            print(f"{at_once:8} {shown} {ratios[0]:20.2f}x {ratios[1]:17.2f}x", flush=True)
    print(f"scripts a second; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")


def check(given: argparse.Namespace) -> None:
    """Run scripts of which some are bad; fail if one is answered wrongly, or something is left."""
    chance = random.Random(0)
    scripts = [
        chance.choice(BAD) if chance.random() < given.bad else good(chance.randrange(10, 1_000))
        for _ in range(given.check)
    ]
    wrong, kinds = list[str](), Counter[str]()
    with serving(given.places, given.places) as wire:
        began = time.perf_counter()

        def run(script: Script) -> None:
            ran = wire.run(script.code, given.path)
            kinds[f"{ran['status']:.60} {ran['return_code']}"] += 1
            if not script.is_right(ran):
                wrong.append(f"{script.code}: {ran['status']} {ran['return_code']} {ran['stdout'][-100:]!r}")

        with ThreadPoolExecutor(given.at_once[-1]) as pool:
            for number, _ in enumerate(pool.map(run, scripts), 1):
                if number % 500 == 0:
                    print(f"  {time.perf_counter() - began:6.0f} s: {number:,} of {len(scripts):,}", flush=True)
        seconds = time.perf_counter() - began
        print(f"{len(scripts):,} scripts in {seconds:.0f} s ({len(scripts) / seconds:.1f} a second): {dict(kinds)}")
        print(f"{len(wrong)} wrong", *wrong[:10], sep="\n  ")
        _, *folders, processes = wire.run(LOOK, given.path, "bash")["stdout"].split() if given.path else ("", "0")
        shared = 2 if given.path else 0  # the container that the scripts of a key share, and the one before it
        left = waited(wire.containers, most := given.places + shared) - most
        print(f"left: {len(folders)} folders, {processes} processes, {max(left, 0)} containers", flush=True)
    assert not wrong, "scripts were answered wrongly"
    assert (len(folders), processes) == (0, "0"), "folders or processes are left"
    assert left <= 0, "containers are left"


def main() -> None:
    """Read the options, and measure or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument(
        "--places", type=int, default=8, help="containers that run scripts at once; as many wait in a pool"
    )
    parser.add_argument("--check", type=int, default=0, help="run so many scripts, and look at each answer")
    parser.add_argument("--bad", type=float, default=0.05)
    parser.add_argument("--path", choices=("", "/shared"), default="", help="of the check")
    given = parser.parse_args()
    (check if given.check else compare)(given)


if __name__ == "__main__":
    main()
