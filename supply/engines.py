"""The promises on the engines of Debian 13 and of its newest packages, in virtual machines: `scripts/try engines`.

Runs `doctor`, the probe and the tests of the sandbox on cgroup v2 with Docker and Podman, rootful and rootless.
The results of the rows that ran replace those in supply/engines.json, from which comes the table of docs/engines.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agent_tools.engines.context import tag_for
from supply.uml import ROOT, Disks, Machine, MachineError, booted, pack_checkout

T = TypeVar("T")
QUIET: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False}
RESULTS = ROOT / "supply" / "engines.json"
PAGE = ROOT / "docs" / "engines.md"
BEGIN, END = "<!-- results of scripts/try engines -->", "<!-- end of results -->"
TESTS = {  # file: seconds, on one CPU whose system calls take thirty times as long
    "tests/docker/test_isolation.py": 600,
    "tests/docker/test_conformance.py": 600,
    "tests/docker/test_hostile.py": 1200,
    "tests/docker/test_pool.py": 900,
    "tests/docker/test_checkpoints.py": 1200,
    "tests/docker/test_egress.py": 900,
    "tests/contract": 3600,
}
UNLESS = "not process-sockets"  # tests that run without an engine
TWO_USERS = "tests/docker/test_two_users.py"
CHECKOUT = """
rm -rf /opt/repo && mkdir /opt/repo && tar -xf /host/checkout.tar -C /opt/repo && chown -R {user} /opt/repo
"""
RUN_DIR = "/run/user/1000"
DOCKER_OF_USER, PODMAN_OF_USER = f"{RUN_DIR}/docker.sock", f"{RUN_DIR}/podman/podman.sock"
PODMAN_SOCKET = "/run/podman/podman.sock"
DOCKER = """
mkdir -p /etc/docker
echo '{"bridge": "none", "iptables": false, "ip6tables": false OPTIONS}' >/etc/docker/daemon.json
systemctl -q unmask docker.service docker.socket containerd.service && systemctl restart docker
"""
"""No bridge, since the kernel has no tables for NAT, and sandboxes have no network."""
CRUN = ', "default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}'
WITHOUT_PROFILE = "apparmor_parser -R /etc/apparmor.d/crun\n"  # until the next boot
SESSION = """
mkdir -p /etc/systemd/system/user@.service.d
printf '[Service]\\nDelegate=cpu memory pids\\n' >/etc/systemd/system/user@.service.d/delegate.conf
systemctl daemon-reload && systemctl stop user@1000.service && loginctl enable-linger dev
systemctl start user@1000.service
"""
ROOTLESS_DOCKER = """
AS_USER systemd-run -q --user --unit=docker -p Delegate=yes -E DOCKERD_ROOTLESS_ROOTLESSKIT_NET=slirp4netns \\
    -E PATH=/usr/sbin:/usr/bin /usr/share/docker.io/contrib/dockerd-rootless.sh --bridge=none --iptables=false \\
    --ip6tables=false
for i in $(seq 60); do [ -S /run/user/1000/docker.sock ] && break; sleep 1; done
AS_USER docker version --format '{{.Server.Version}}'
"""
ROOTLESS_PODMAN = "AS_USER systemctl --user start podman.socket"
PODMAN = f"{WITHOUT_PROFILE}systemctl start podman.socket"
REASONS = (
    (
        "other ABIs|our_sandbox_holds|prints_json",
        "UML takes `int 0x80` for a call of x86_64, and the filter judges that",
    ),
    ("a_module_that_starts_a_thread", "OpenBLAS starts no thread where there is one processor"),
    (
        "an_ordinary_container|a_weak_container|with_little_room|netavark",
        "UML has no tables for the bridge of such containers",
    ),
    (
        "hindrance='time'|costs_one_cell",
        "copies of the kernel take longer in UML than they may: an earlier one woke",
    ),
    (
        "smuggled|client_of|packages_are|hosts_cache|ends_the_proxy|a_secret_is",
        "they ask PyPI: the machine has no network",
    ),
    (
        "empty files in memory|host_sees_an_unprivileged_process",
        "Podman takes no number of files for a folder in memory: the memory limit holds",
    ),
    ("set-user-id files", "in UML the look at all files may need more processor time than the probe has"),
    ("AppArmor lets no process", "refused at its start, with the remedy: [AppArmor and crun](#apparmor-and-crun)"),
)
"""Patterns of what does not hold, and why."""


@dataclass(frozen=True)
class Row:
    """One engine: title, the script that sets it up, the name of its storage, user, socket, tests, Debian's suite."""

    title: str
    set_up: str
    storage: str = "docker"
    user: str = "root"
    socket: str = "/run/docker.sock"
    tests: tuple[str, ...] = tuple(TESTS)
    suite: str = "trixie"


def _docker(options: str = "") -> str:
    return DOCKER.replace("OPTIONS", options)


ROWS = {
    "docker-runc": Row("Docker 26, runc", _docker(), tests=(*TESTS, TWO_USERS)),
    "podman-rootless": Row("Podman 5, rootless, crun", SESSION + ROOTLESS_PODMAN, "podman-dev", "dev", PODMAN_OF_USER),
    "docker-crun": Row("Docker 26, crun, without its AppArmor profile", WITHOUT_PROFILE + _docker(CRUN)),
    "docker-crun-as-shipped": Row("Docker 26, crun, as Debian ships it", _docker(CRUN), tests=()),
    "podman": Row(
        "Podman 5, started by root, crun without its AppArmor profile", PODMAN, "podman", socket=PODMAN_SOCKET
    ),
    "docker-rootless": Row("Docker 26, rootless, runc", SESSION + ROOTLESS_DOCKER, "docker-dev", "dev", DOCKER_OF_USER),
    "docker-user": Row("Docker 26, runc, for a user in the group docker", _docker(), user="dev"),
    "userns-remap": Row("Docker 26, userns-remap", _docker(', "userns-remap": "default"'), "docker-remapped"),
    "docker-28": Row("Docker 28 of Debian sid, runc", _docker(), suite="sid"),
    "podman-5.8": Row(
        "Podman 5.8 of Debian sid, rootless, crun",
        SESSION + ROOTLESS_PODMAN,
        "podman-dev",
        "dev",
        PODMAN_OF_USER,
        suite="sid",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for, write their results and the table; return an exit code."""
    parser = argparse.ArgumentParser(prog="scripts/try engines", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all if none is given")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-tools-engines"
    parser.add_argument("--cache", type=Path, default=cache, help=f"the folder of the disk, 10 GB (default {cache})")
    parser.add_argument("--memory", default="4G", help="memory of a machine, from /dev/shm (default 4G)")
    parser.add_argument("--tests", nargs="*", metavar="FILE", help="run these test files only; none: only the probe")
    parser.add_argument("--table", action="store_true", help="only write the table from the results")
    given = parser.parse_args(arguments)
    if unknown := set(given.rows) - set(ROWS):
        parser.error(f"There is no row {', '.join(sorted(unknown))}. Rows: {', '.join(ROWS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the machine ends, too
    is_good = True
    if not given.table:
        disks = {
            suite: Disks(given.cache.resolve(), suite) for suite in {ROWS[name].suite for name in given.rows or ROWS}
        }
        try:
            for suite, disk in disks.items():
                _step(f"disk of {suite}", disk.make)
            image = _image(given.cache.resolve())
        except MachineError as exc:
            print(f"engines: {exc}", file=sys.stderr)
            return 1
        for name in given.rows or ROWS:
            run = run_row(ROWS[name], disks[ROWS[name].suite], image, given.memory, given.tests)
            is_good &= _update(results, name, run)
    PAGE.write_text(with_table(PAGE.read_text(), results))
    return 0 if is_good else 1


def _update(results: dict[str, Any], name: str, run: Iterable[dict[str, Any]]) -> bool:
    """Write the results of one row as they come; return whether the row ran to its end and all that fails is known."""
    print(f"{ROWS[name].title}:", flush=True)
    found: dict[str, Any] = {}
    try:
        for found in run:
            results[name] = merged(results.get(name, {}), found)
            in_order = {key: results[key] for key in ROWS if key in results}
            RESULTS.write_text(json.dumps(in_order, indent=1) + "\n")
    except MachineError as exc:
        print(f"engines: {name}: {exc}", file=sys.stderr)
        return False
    return not surprises(found)


def run_row(row: Row, disks: Disks, image: Path, memory: str, tests: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Set an engine up in a machine, and yield its versions and what doctor, the probe and tests say, as it grows."""
    share = disks.folder / "share"
    share.mkdir(exist_ok=True)
    pack_checkout(share / "checkout.tar")
    (share / "image.tar").unlink(missing_ok=True)
    os.link(image, share / "image.tar")
    snapshot = disks.folder / f"snapshot-{disks.path.name[5:]}-{image.stem[6:]}-{row.storage}"
    with booted(disks, share, memory, snapshot) as machine:
        inside = _Inside(machine, row)
        inside.root("checkout", CHECKOUT.format(user=row.user))
        inside.root("engine", row.set_up.replace("AS_USER", inside.as_user))
        if not snapshot.exists():  # loading takes minutes, and rows share it
            inside.user("image", "agent-tools image load /host/image.tar", 1200, must_succeed=True)
            machine.keep(snapshot)
        found: dict[str, Any] = {"date": str(datetime.datetime.now(datetime.UTC).date()), "tests": {}}
        found["versions"] = inside.user("versions", VERSIONS, 60)[1].split("\n")
        code, said = inside.user("doctor", "COLUMNS=400 agent-tools doctor", 600)
        fails = re.findall(r"^│ *(.*?) *│ fail *│ *(.*?) *│ *(.*?) *│$", said, re.MULTILINE)
        found["doctor"] = {"code": code, "fails": fails}
        found["probe"] = probed(inside.user("probe", "agent-tools doctor --probe --json", 600)[1])
        yield found
        for name in row.tests if tests is None else tests:
            found["tests"][name] = inside.tested(name)
            yield found


VERSIONS = "docker version --format '{{.Server.Version}}'; uname -r; runc --version | head -1; crun --version | head -1"


class _Inside:
    """What runs in the machine of one row, with its time on the way."""

    def __init__(self, machine: Machine, row: Row) -> None:
        self._machine = machine
        home = "/root" if row.user == "root" else f"/home/{row.user}"
        environ = f"HOME={home} DOCKER_HOST=unix://{row.socket} PATH=/opt/venv/bin:/usr/sbin:/usr/bin"
        if row.user != "root":
            environ += f" XDG_RUNTIME_DIR={RUN_DIR} DBUS_SESSION_BUS_ADDRESS=unix:path={RUN_DIR}/bus"
        self.as_user = f"runuser -u {row.user} -- env {environ}"

    def root(self, what: str, script: str, seconds: float = 300) -> tuple[int, str]:
        """Run a step as root, which has to succeed."""
        return _step(what, lambda: self._machine.run(f"set -e\n{script}", seconds), must_succeed=True)

    def user(self, what: str, script: str, seconds: float, *, must_succeed: bool = False) -> tuple[int, str]:
        """Run a step as the row's user in the checkout."""
        command = f"cd /opt/repo && timeout -s INT {seconds:.0f} {self.as_user} bash -c {shlex.quote(script)}"
        return _step(what, lambda: self._machine.run(command, seconds + 60), must_succeed=must_succeed)

    def tested(self, name: str) -> dict[str, Any]:
        """Run tests, but not those on plain processes; return their counts, and the bad ones with their first words."""
        command = f"COLUMNS=400 exec python -m pytest -v -n 0 --tb=short -p no:cacheprovider -k '{UNLESS}' {name}"
        return outcomes(self.user(name, command, TESTS.get(name, 900))[1])


def _step(what: str, work: Callable[[], T], *, must_succeed: bool = False) -> T:
    """Do some work, with a line that says what it is and how long it took.

    Raises:
        MachineError: `must_succeed`, and the work is a script that did not.
    """
    print(f"  {what} ...", end="", flush=True)
    begun = time.monotonic()
    result = work()
    print(f" {time.monotonic() - begun:.0f} s", flush=True)
    if must_succeed and isinstance(result, tuple) and result[0]:
        raise MachineError(f"{what} failed: {result[1][-1000:]}")
    return result


def _image(folder: Path) -> Path:
    """Return an archive of the sandbox's image, made with this machine's engine once for each image.

    Raises:
        MachineError: no engine answers here, or the image could not be built.
    """
    tag = tag_for().rpartition(":")[2]
    archive = folder / f"image-{tag}.tar"
    if not archive.exists():
        for old in folder.glob("image-*"):
            old.unlink()
        program = [sys.executable, "-m", "agent_tools", "image"]
        for words in (["build", "--if-missing"], ["save", str(archive)]):
            done = _step(f"image {words[0]}", partial(subprocess.run, [*program, *words], cwd=ROOT, **QUIET))
            if done.returncode:
                raise MachineError(f"The image could not be had: {done.stderr[-500:]} Start an engine: scripts/engine")
        archive.chmod(0o644)
    return archive


def probed(said: str) -> dict[str, Any]:
    """Return the probe's counts and what it found open or unknown, or the reason why it did not run."""
    try:
        answer = json.loads(said)
    except ValueError:
        return {"failure": " ".join(said.split())[:600]}
    bad = {each["name"]: each["found"] for each in answer["findings"] if each["verdict"] in ("open", "unknown")}
    return {"counts": {name: answer["summary"][name] for name in ("held", "open", "unknown", "info")}, "bad": bad}


def outcomes(said: str) -> dict[str, Any]:
    """Return the count of each outcome in what `pytest -v` printed, and the tests that are not passed."""
    found = dict(re.findall(r"^(tests/\S+::.*?) (PASSED|FAILED|ERROR)\b", said, re.MULTILINE))
    bad = {name: outcome for name, outcome in found.items() if outcome != "PASSED"}
    bad |= dict(re.findall(r"^(?:FAILED|ERROR) (tests/\S+::.*?) - (.*)$", said, re.MULTILINE))
    total = re.search(r"collected (\d+) items(?: / (\d+) deselected)?", said)
    asked = int(total[1]) - int(total[2] or 0) if total else 0
    return {"asked": asked, "passed": len(found.keys() - bad.keys()), "bad": bad}


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new results of a row, with the old ones of tests that were not run again."""
    return {**old, **new, "tests": {**old.get("tests", {}), **new["tests"]}}


def surprises(found: Mapping[str, Any]) -> list[str]:
    """Return what does not hold in a row's results and has no known reason."""
    return [name for name, why in failures(found).items() if not reason(f"{name}: {why}")]


def failures(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what does not hold in a row's results, with its first words: failures of doctor, open checks, tests."""
    bad = {f"doctor: {name}": f"{what} {advice}" for name, what, advice in found["doctor"]["fails"]}
    bad |= {f"probe: {name}": what for name, what in found["probe"].get("bad", {}).items()}
    bad |= {"probe": found["probe"]["failure"]} if "failure" in found["probe"] else {}
    for tests in found["tests"].values():
        bad |= {name.rpartition("::")[2]: why for name, why in tests["bad"].items()}
    return bad


def reason(words: str) -> str:
    """Return the reason why something does not hold, '' if it is not known."""
    return next((why for pattern, why in REASONS if re.search(pattern, words)), "")


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with the table of the results between its two markers."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    lines = [
        "| engine (cgroup v2) | `doctor`, probe | tests | what does not hold, and why |",
        "|---|---|---|---|",
    ]
    lines += [_line(ROWS[name], results[name]) for name in ROWS if name in results]
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}"


def _line(row: Row, found: Mapping[str, Any]) -> str:
    probe, tests = found["probe"], found["tests"]
    counts = ", ".join(f"{number} {name}" for name, number in probe.get("counts", {}).items() if number)
    doctor = f"{len(found['doctor']['fails'])} fail" if found["doctor"]["code"] else "ok"
    ran = "; ".join(f"{_short(name)} {each['passed']} of {each['asked']}" for name, each in tests.items())
    grouped: dict[str, list[str]] = {}
    for name, why in failures(found).items():
        grouped.setdefault(reason(f"{name}: {why}") or "not known", []).append(f"`{name.partition('[')[0]}`")
    bad = [f"{why} ({names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)})" for why, names in grouped.items()]
    return f"| {row.title} | {doctor}; {counts or 'not started'} | {ran or '-'} | {'<br>'.join(bad) or '-'} |"


def _short(name: str) -> str:
    return name.rpartition("/")[2].removeprefix("test_").removesuffix(".py").replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
