"""Runs the tests of the sandbox under gVisor, on an engine of its own: `scripts/try gvisor [FILE...]`.

Fetches Debian 13's `runsc` (sid's panics), starts a second dockerd with its own bridge and a data-root in a temporary
folder, gives it the image, runs the probe and the tests there one after another, and stops and removes all of it. Root
only. The engine of this machine is asked for nothing but its image.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agent_tools.engines.context import tag_for

ROOT = Path(__file__).resolve().parents[1]
SUITE = "http://deb.debian.org/debian trixie main"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
BRIDGE, ADDRESS = "at-gvisor0", "10.213.77.1/24"
FLAGS = ("--platform=systrap", "--network=none", "--host-uds=all")
"""Without `--network=none` this runsc starts no container on Linux 6.11 and newer."""
TESTS = (
    "tests/docker/test_isolation.py",
    "tests/docker/test_hostile.py",
    "tests/docker/test_exhaustion.py",
    "tests/docker/test_checkpoints.py",
    "tests/docker/test_going_back.py",
    "tests/docker/test_forking.py",
    "tests/docker/test_pool.py",
    "tests/docker/test_egress.py",
    "tests/contract",
)
SECONDS = 3600  # for one file of tests
START_SECONDS = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probe and the tests; print a line for each. Return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="scripts/try gvisor", description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS, help="files of tests; by default those of the sandbox")
    parser.add_argument("--benchmark", action="store_true", help="run benchmarks/gvisor.py instead of tests")
    given = parser.parse_args(arguments)
    if os.getuid() != 0:
        sys.exit("try: root only: it starts an engine.")
    with tempfile.TemporaryDirectory(prefix="agent-tools-gvisor-") as name, engine(Path(name)) as host:
        environ = {**os.environ, "DOCKER_HOST": host}
        if given.benchmark:
            return subprocess.run(
                [sys.executable, "benchmarks/gvisor.py"], cwd=ROOT, env=environ, check=False
            ).returncode
        return max([_probe(environ), *(_test(file, environ) for file in given.tests)])


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """Run a second engine whose default runtime is gVisor; yield its address. It has the image of this checkout."""
    host = f"unix://{folder}/docker.sock"
    with ExitStack() as undo:
        _bridge(undo)
        config = {
            "runtimes": {"runsc": {"path": str(_runsc(folder)), "runtimeArgs": FLAGS}},
            "default-runtime": "runsc",
        }
        (folder / "daemon.json").write_text(json.dumps(config))
        places = [f"--{name}={folder}/{value}" for name, value in PLACES.items()]
        network = [
            f"--bridge={BRIDGE}",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
        ]
        log = undo.enter_context(open(folder / "log", "w"))
        daemon = subprocess.Popen(["dockerd", "-H", host, *places, *network], stdout=log, stderr=log)
        undo.callback(_stopped, daemon, folder)
        _await(host, daemon, folder / "log")
        with subprocess.Popen(["docker", "save", tag_for()], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", "-H", host, "load", "-q"], stdin=saved.stdout, check=True)
        yield host


PLACES = {"config-file": "daemon.json", "data-root": "data", "exec-root": "exec", "pidfile": "docker.pid"}


def _bridge(undo: ExitStack) -> None:
    """Make a bridge of its own: dockerd --bridge=none deletes docker0, which is the other engine's."""
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    undo.callback(subprocess.run, ["ip", "link", "delete", BRIDGE], check=False)
    subprocess.run(["ip", "address", "add", ADDRESS, "dev", BRIDGE], check=True)
    subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)


def _runsc(folder: Path) -> Path:
    """Fetch Debian's package by apt, with lists of its own, and unpack it."""
    apt = folder / "apt"
    (apt / "lists" / "partial").mkdir(parents=True)
    (apt / "archives" / "partial").mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb [signed-by={KEYS}] {SUITE}\n")
    options = {"Etc::sourcelist": "sources.list", "State::lists": "lists", "Cache": "."}
    command = ["apt-get", "-qq", *(f"-oDir::{name}={apt / place}" for name, place in options.items())]
    command += ["-oDir::Etc::sourceparts=/dev/null", "-oAPT::Sandbox::User=root"]
    for words in (["update"], ["download", "runsc"]):
        subprocess.run([*command, *words], cwd=folder, check=True)
    (package,) = folder.glob("runsc_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder / "files"], check=True)
    return folder / "files" / "usr" / "bin" / "runsc"


def _await(host: str, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run(["docker", "-H", host, "version"], capture_output=True, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"try: dockerd did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def _stopped(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    """Stop the engine, which ends its containers, and remove what it has mounted."""
    daemon.terminate()
    daemon.wait()
    mounts = re.findall(rf"^\S+ ({re.escape(str(folder))}\S*)", Path("/proc/mounts").read_text(), re.MULTILINE)
    for mount in reversed(mounts):
        subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(folder / "data", ignore_errors=True)


def _probe(environ: dict[str, str]) -> int:
    command = [sys.executable, "-m", "agent_tools", "doctor", "--probe"]
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    print(f"probe: {done.stdout.strip().splitlines()[-1]}", flush=True)
    return done.returncode


def _test(file: str, environ: dict[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", file]
    environ = {**environ, "COLUMNS": "300"}  # so that pytest gives the reason of each failure
    with tempfile.TemporaryFile("w+") as log:
        code = subprocess.run(command, cwd=ROOT, env=environ, stdout=log, timeout=SECONDS, check=False).returncode
        log.seek(0)
        lines = log.read().splitlines()
    print(f"{file}: {lines[-1] if lines else 'no output'}", flush=True)
    print(*(f"    {line}" for line in lines if line.startswith(("FAILED", "ERROR"))), sep="\n", flush=True)
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
