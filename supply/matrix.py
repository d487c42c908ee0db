"""The promises on every engine and OCI runtime there is: `scripts/try matrix`.

Engines are the one of DOCKER_HOST, those that DOCKER_HOSTS names, and the usual sockets. A combination that could not
be run is a line of the table, too, with the reason and the remedy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker.errors
from rich.console import Console
from rich.table import Table

import docker

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = "unix:///var/run/docker.sock"
TESTS = (
    "tests/contract",
    "tests/docker/test_isolation.py",
    "tests/docker/test_conformance.py",
    "tests/docker/test_code_interpreter.py",
)
PROBE_SECONDS = 900  # the image may have to be built first
TESTS_SECONDS = 3600
ENGINE_SECONDS = 10
PASSED, FAILED, MISSING = 0, 1, 3  # exit codes; 2 is argparse's
NOT_RUN = "NOT RUN"

KINDS = {
    "runc": "no engine here runs containers with runc: install Docker (scripts/engine)",
    "cgroup v1": "every engine here has cgroup v2; boot with systemd.unified_cgroup_hierarchy=0",
    "cgroup v2": "every engine here has cgroup v1; boot with systemd.unified_cgroup_hierarchy=1",
    "gVisor": "no engine here knows a runtime `runsc`: install gVisor, then `runsc install` and restart the engine",
    "Kata": "no engine here knows a runtime `kata`: install Kata Containers and name it in the engine's daemon.json",
    "crun": "no engine here knows a runtime `crun`: install crun and name it in the engine's daemon.json",
    "rootless": "no rootless engine answers: dockerd-rootless-setuptool.sh install, or name its socket in DOCKER_HOSTS",
    "userns-remap": "no engine here maps users: set userns-remap in its daemon.json",
    "Podman": "no Podman answers: systemctl --user start podman.socket, or name its socket in DOCKER_HOSTS",
}
"""Kinds of runtime that should be run somewhere, and the remedy where one cannot be."""
OWN_KERNEL = frozenset({"gVisor", "Kata"})
"""Kinds in which a kernel of the sandbox's own answers the code: an open check leads to that kernel only."""


@dataclass(frozen=True)
class Place:
    """One engine with one of its runtimes; '' is the engine's own choice."""

    host: str
    engine: str
    runtime: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    where: str
    kinds: tuple[str, ...]
    probe: str
    tests: str = "not asked for"
    has_run: bool = False
    is_bad: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all places that can be run, print the table, and return an exit code."""
    parser = argparse.ArgumentParser(prog="scripts/try matrix", description=__doc__)
    parser.add_argument("--tests", action="store_true", help="run the tests of the sandbox besides the probe")
    parser.add_argument("--list", action="store_true", help="list the runs without running them")
    parser.add_argument("--require", action="append", default=[], choices=KINDS, help="fail if this could not be run")
    given = parser.parse_args(arguments)
    places = [place for host in hosts(os.environ) for place in places_of(host, _info(host))]
    rows = [_row(place) if given.list else _run(place, given.tests) for place in places]
    rows += missing(places)
    _show(rows)
    if any(row.is_bad for row in rows):
        return FAILED
    return MISSING if set(given.require) - {kind for row in rows if row.has_run for kind in row.kinds} else PASSED


def hosts(environ: Mapping[str, str]) -> list[str]:
    """Return the engines to ask, each once: the CLI's own, those named, and the usual sockets."""
    run = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = [f"{run}/docker.sock", f"{run}/podman/podman.sock", "/run/podman/podman.sock"]
    found = [environ.get("DOCKER_HOST") or DEFAULT, *environ.get("DOCKER_HOSTS", "").split()]
    return list(dict.fromkeys([*found, *(f"unix://{path}" for path in usual if Path(path).exists())]))


def places_of(host: str, info: Mapping[str, Any] | str) -> Iterator[Place]:
    """Return the places of one engine by its `docker info`; an engine that did not answer is a place without kinds."""
    if isinstance(info, str):
        yield Place(host, info, "", frozenset())
        return
    is_podman = "libpod" in str(info.get("ServerVersion", "")) or "Podman" in str(info.get("ProductLicense", ""))
    is_podman = is_podman or any(each.get("Name") == "Podman Engine" for each in info.get("Components", ()))
    kinds = {f"cgroup v{info.get('CgroupVersion', '?')}"} | ({"Podman"} if is_podman else set())
    options = " ".join(info.get("SecurityOptions") or ())
    kinds |= {"rootless"} if "rootless" in options else set()
    kinds |= {"userns-remap"} if "name=userns" in options else set()
    name = f"{'Podman' if is_podman else 'Docker'} {info.get('ServerVersion', '?')}"
    first = str(info.get("DefaultRuntime") or "runc")
    yield Place(host, name, "", frozenset(kinds | _kind_of(first)))
    for runtime in sorted(info.get("Runtimes") or ()) if not is_podman else ():
        if runtime != first and _kind_of(runtime):
            yield Place(host, name, runtime, frozenset(kinds | _kind_of(runtime)))


def missing(places: Iterable[Place]) -> list[Row]:
    """Return a line for each kind that no engine here offers."""
    offered = {kind for place in places for kind in place.kinds}
    return [Row("-", (kind,), f"{NOT_RUN}: {advice}", NOT_RUN) for kind, advice in KINDS.items() if kind not in offered]


def _kind_of(runtime: str) -> set[str]:
    """Return the kind that a runtime's name stands for; nothing for an alias of the engine's own."""
    for start, kind in (("runsc", "gVisor"), ("kata", "Kata"), ("crun", "crun"), ("runc", "runc")):
        if runtime.startswith(start):
            return {kind}
    return set()


def _info(host: str) -> Mapping[str, Any] | str:
    """Return `docker info` with the components of `docker version`, or the reason why nothing answers."""
    try:
        client = docker.APIClient(base_url=host, version="auto", timeout=ENGINE_SECONDS)
        try:
            return {**client.info(), "Components": client.version().get("Components") or ()}
        finally:
            client.close()
    except (docker.errors.DockerException, OSError) as exc:
        return "no answer (" + str(exc).rpartition(": ")[2].strip("()\"'") + ")"


def _row(place: Place) -> Row:
    if not place.kinds:
        return Row(place.host, (), f"{NOT_RUN}: {place.engine}", NOT_RUN)
    runtime = place.runtime or "its own runtime"
    return Row(f"{place.engine}, {runtime}, {place.host}", tuple(sorted(place.kinds)), "would run")


def _run(place: Place, with_tests: bool) -> Row:
    row = _row(place)
    if not place.kinds:
        return row
    environ = {**os.environ, "DOCKER_HOST": place.host}
    command = [sys.executable, "-m", "agent_tools", "doctor", "--probe", "--json"]
    command += ["--runtime", place.runtime] if place.runtime else []
    row = judged(row, _finish(command, environ, PROBE_SECONDS))
    if not (with_tests and row.has_run):
        return row
    if place.runtime:
        return replace(row, tests=f"{NOT_RUN}: they take the engine's own runtime; make {place.runtime} that")
    done = _finish([sys.executable, "-m", "pytest", "-q", "-n", "0", *TESTS], environ, TESTS_SECONDS)
    last = (done.stdout.strip().splitlines() or ["printed nothing"])[-1]
    return replace(row, tests=last.strip("= "), is_bad=row.is_bad or done.returncode != 0)


def judged(row: Row, done: subprocess.CompletedProcess[str]) -> Row:
    """Return the row with the probe's counts and open checks, or with its first words where it could not run."""
    try:
        said = json.loads(done.stdout)
    except ValueError:
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[0]
        return replace(row, probe=f"{NOT_RUN}: {why}", tests=NOT_RUN)
    found = ", ".join(f"{said['summary'][verdict]} {verdict}" for verdict in ("held", "open", "unknown", "info"))
    still_open = [each["name"] for each in said["findings"] if each["verdict"] == "open"]
    if still_open:
        found += f"; open: {', '.join(still_open)}"
    is_bad = bool(said["summary"]["is_open"]) and OWN_KERNEL.isdisjoint(row.kinds)
    return replace(row, probe=found, has_run=True, is_bad=is_bad)


def _finish(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=dict(environ), cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"it did not end within {seconds:.0f} seconds")


def _show(rows: Iterable[Row]) -> None:
    table = Table("kinds", "where", "probe", "tests", show_lines=True)
    for row in rows:
        table.add_row(", ".join(row.kinds), row.where, row.probe, row.tests)
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
