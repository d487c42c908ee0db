import os
from dataclasses import replace
from typing import Any

import pytest

from agent_tools.conformance.container_settings import ContainerSettings
from agent_tools.conformance.facts import ContainerFacts, MountPoint, ProcessFacts, read_facts
from agent_tools.conformance.findings import Finding
from agent_tools.conformance.host import RULES, host_findings
from agent_tools.limits import GIB

STATUS = {
    "Uid": "10001\t10001\t10001\t10001",
    "Gid": "10001\t10001\t10001\t10001",
    "Groups": "10001",
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "NSpid": "4711\t1",
}
RLIMITS = {"Max open files": "1024", "Max file size": "1073741824", "Max core file size": "0"}
HOST_CONFIG = {
    "NetworkMode": "none",
    "PidMode": "",
    "IpcMode": "private",
    "UTSMode": "",
    "Privileged": False,
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges:true", 'seccomp={"defaultAction": "SCMP_ACT_ERRNO"}'],
    "ReadonlyRootfs": True,
    "Devices": [],
    "MaskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
    "ReadonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
    "Memory": 2 * GIB,
    "MemorySwap": 2 * GIB,
    "NanoCpus": 1_000_000_000,
    "PidsLimit": 256,
    "LogConfig": {"Type": "local", "Config": {"max-size": "1024k"}},
}
BIND = {"Type": "bind", "Source": "/srv/work", "Destination": "/workspace", "Propagation": "rprivate"}
ROOT = MountPoint("/", "overlay", frozenset({"ro", "relatime"}), is_shared=False)
TMP = MountPoint("/tmp", "tmpfs", frozenset({"rw", "noexec", "size=262144k", "nr_inodes=65536"}), is_shared=False)


def facts(
    host: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    mounts: list[dict[str, Any]] | None = None,
    ports: dict[str, Any] | None = None,
) -> ContainerFacts:
    """Return what the host reads of a sandbox as it should be, but for what is given."""
    settings = ContainerSettings.of(inspected(host, config, mounts, ports))
    return ContainerFacts(settings, (ProcessFacts(STATUS, RLIMITS),), (ROOT, TMP), ("lo",), {"tcp": 64 * 1024**2})


def inspected(
    host: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    mounts: list[dict[str, Any]] | None = None,
    ports: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "Config": {
            "Env": ["HOME=/home/sandbox", "PYTHON_SHA256=" + "a1" * 32],
            "Cmd": ["python", "-P"],
            **(config or {}),
        },
        "HostConfig": {**HOST_CONFIG, **(host or {})},
        "Mounts": [BIND] if mounts is None else mounts,
        "NetworkSettings": {"Ports": ports or {}},
    }


def with_process(status: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> ContainerFacts:
    """A second process beside one that is as it should be."""
    odd = ProcessFacts({**STATUS, **(status or {})}, {**RLIMITS, **(limits or {})})
    return replace(facts(), processes=(ProcessFacts(STATUS, RLIMITS), odd))


def without(name: str) -> ContainerFacts:
    return replace(facts(), processes=(ProcessFacts({key: STATUS[key] for key in STATUS if key != name}, RLIMITS),))


def unseen(**host: Any) -> ContainerFacts:
    """A container whose processes the host cannot see."""
    return ContainerFacts(facts(host).settings)


def by_name(found: ContainerFacts) -> dict[str, Finding]:
    return {finding.name: finding for finding in host_findings(found)}


def test_a_sandbox_as_we_make_it_holds_in_everything() -> None:
    found = by_name(facts())
    assert len(found) == len(RULES) == 30
    assert [finding for finding in found.values() if finding.verdict != "held"] == []
    assert {finding.seen_by for finding in found.values()} == {"host"}
    assert {finding.name for finding in found.values() if not finding.is_promised} <= {"TCP buffers"}


def test_files_of_the_kernel_that_mounts_cover_need_no_settings_that_say_so() -> None:
    settings = facts({"MaskedPaths": None, "ReadonlyPaths": None}).settings
    covered = [MountPoint(path, "tmpfs", frozenset({"rw"}), False) for path in ("/proc/keys", "/proc/timer_list")]
    covered.append(MountPoint("/proc/sys", "proc", frozenset({"ro"}), False))
    seen = replace(facts(), settings=settings, mounts=(ROOT, *covered))
    assert by_name(seen)["kernel's files in /proc"].found == "/proc/kcore, /proc/sysrq-trigger"
    seen = replace(seen, absent=frozenset({"/proc/kcore", "/proc/sysrq-trigger"}))
    assert by_name(seen)["kernel's files in /proc"].verdict == "held"


def test_a_work_dir_in_the_memory_of_the_host_is_no_folder_of_the_sandbox() -> None:
    finding = by_name(mount("/workspace", "rw"))["memory-backed folders"]
    assert (finding.verdict, finding.found) == ("held", "/workspace lies in the host's memory (tmpfs)")


def mount(target: str, *options: str, kind: str = "tmpfs", is_shared: bool = False) -> ContainerFacts:
    return replace(facts(), mounts=(ROOT, MountPoint(target, kind, frozenset(options), is_shared)))


VOLUME = MountPoint("/volumes/data", "ext4", frozenset({"ro"}), is_shared=False)
OPEN = {
    "a proxy": (facts(config={"Env": ["https_proxy=http://proxy"]}), "no proxy settings"),
    "a token in Env": (facts(config={"Env": ["API_TOKEN=x"]}), "no secrets in its settings"),
    "a password in a URL": (facts(config={"Env": ["DB=pg://me:pw@db"]}), "no secrets in its settings"),
    "a key in Cmd": (facts(config={"Cmd": ["run", "--key=" + "0f" * 32]}), "no secrets in its settings"),
    "a key in the entry point": (facts(config={"Entrypoint": ["run", "0f" * 32]}), "no secrets in its settings"),
    "writable root": (replace(facts({"ReadonlyRootfs": False}), mounts=()), "root file system"),
    "root remounted": (replace(facts(), mounts=(replace(ROOT, options=frozenset({"rw"})), TMP)), "root file system"),
    "docker.sock": (facts(mounts=[{**BIND, "Source": "/srv/docker.sock"}]), "engine socket mounted"),
    "the host's root": (facts(mounts=[{**BIND, "Source": "/"}]), "host folders"),
    "the host's home": (facts(mounts=[{**BIND, "Source": "/root"}]), "host folders"),
    "below /etc": (facts(mounts=[{**BIND, "Source": "/etc/ssl"}]), "host folders"),
    "slave bind": (facts(mounts=[{**BIND, "Propagation": "rslave"}]), "mount propagation"),
    "shared mount": (mount("/x", "rw", kind="ext4", is_shared=True), "mount propagation"),
    "a mount below a volume": (
        replace(facts(), mounts=(ROOT, VOLUME, replace(VOLUME, target="/volumes/data/inner"))),
        "volumes",
    ),
    "nothing masked": (facts({"MaskedPaths": None}), "kernel's files in /proc"),
    "sysctl writable": (facts({"ReadonlyPaths": ["/proc/sysrq-trigger"]}), "kernel's files in /proc"),
    "sysctl mounted to write": (
        replace(
            facts({"ReadonlyPaths": None}), mounts=(ROOT, MountPoint("/proc/sys", "proc", frozenset({"rw"}), False))
        ),
        "kernel's files in /proc",
    ),
    "bridge": (facts({"NetworkMode": "bridge"}), "network mode"),
    "an interface": (replace(facts(), interfaces=("lo", "eth0")), "interfaces"),
    "a port": (facts(ports={"80/tcp": [{"HostPort": "8080"}]}), "published ports"),
    "root": (with_process({"Uid": "0\t0\t0\t0"}), "user of every process"),
    "saved root": (with_process({"Uid": "10001\t10001\t0\t10001"}), "user of every process"),
    "root's group": (with_process({"Gid": "0\t0\t0\t0"}), "user of every process"),
    "root as further group": (with_process({"Groups": "10001 0"}), "supplementary groups"),
    **{
        f"something in {name}": (with_process({name: "0000000000000400"}), "capabilities")
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    },
    "no capabilities dropped": (unseen(CapDrop=None), "capabilities"),
    "one capability dropped": (unseen(CapDrop=["NET_RAW"]), "capabilities"),
    "a capability added": (unseen(CapAdd=["SYS_ADMIN"]), "capabilities"),
    "a capability set untold": (without("CapAmb"), "capabilities"),
    "new privileges": (with_process({"NoNewPrivs": "0"}), "NoNewPrivs"),
    "new privileges untold": (without("NoNewPrivs"), "NoNewPrivs"),
    "no filter": (with_process({"Seccomp": "0"}), "Seccomp filter"),
    "strict mode": (with_process({"Seccomp": "1"}), "Seccomp filter"),
    "the engine's seccomp profile": (facts({"SecurityOpt": None}), "seccomp profile"),
    "no seccomp profile": (facts({"SecurityOpt": ["seccomp=unconfined"]}), "seccomp profile"),
    "no seccomp profile, as it was written once": (facts({"SecurityOpt": ["seccomp:unconfined"]}), "seccomp profile"),
    "privileged": (facts({"Privileged": True}), "privileged, devices"),
    "a device": (facts({"Devices": [{"PathOnHost": "/dev/kvm"}]}), "privileged, devices"),
    "a GPU": (facts({"DeviceRequests": [{"Count": -1}]}), "privileged, devices"),
    "host pids by the settings": (facts({"PidMode": "host"}), "namespaces"),
    "host pids by /proc": (with_process({"NSpid": "4711"}), "namespaces"),
    "another container's ipc": (facts({"IpcMode": "container:abc"}), "namespaces"),
    "memory not set": (facts({"Memory": 0, "MemorySwap": 4 * GIB}), "memory"),
    "memory not in force": (replace(facts(), limits={"memory": float("inf"), "swap": 0}), "memory"),
    "neither memory nor swap set": (facts({"Memory": 0, "MemorySwap": 0}), "memory"),
    "swap not limited": (facts({"MemorySwap": -1}), "swap beyond it"),
    "swap set": (facts({"MemorySwap": 3 * GIB}), "swap beyond it"),
    "swap in force": (replace(facts(), limits={"swap": GIB}), "swap beyond it"),
    "TCP buffers not in force": (replace(facts(), limits={"tcp": float("inf")}), "TCP buffers"),
    "CPU not set": (facts({"NanoCpus": 0}), "CPU"),
    "CPU not in force": (replace(facts(), limits={"cpu": float("inf")}), "CPU"),
    "pids not set": (facts({"PidsLimit": None}), "processes"),
    "pids set to no limit": (facts({"PidsLimit": -1}), "processes"),
    "pids not in force": (replace(facts(), limits={"pids": float("inf")}), "processes"),
    "a tmpfs without a size": (mount("/scratch", "rw", "nr_inodes=1"), "memory-backed folders"),
    "a tmpfs with any number of files": (mount("/scratch", "rw", "size=1k"), "empty files in memory"),
    "open files": (with_process(limits={"Max open files": "1048576"}), "open files"),
    "open files unlimited": (with_process(limits={"Max open files": "unlimited"}), "open files"),
    "file size": (with_process(limits={"Max file size": "unlimited"}), "file size"),
    "core dumps": (with_process(limits={"Max core file size": "unlimited"}), "core dumps"),
    "a log without end": (facts({"LogConfig": {"Type": "json-file", "Config": {}}}), "log"),
}


@pytest.mark.parametrize(("found", "name"), OPEN.values(), ids=OPEN.keys())
def test_what_is_not_as_promised_is_open_and_nothing_else_is(found: ContainerFacts, name: str) -> None:
    open_ones = {finding.name: finding for finding in host_findings(found) if finding.verdict == "open"}
    assert set(open_ones) - _FOLLOWS.get(name, set()) == {name}
    assert all(finding.is_promised != bool(finding.advice) for finding in open_ones.values())


_FOLLOWS = {"memory": {"swap beyond it"}}  # without a limit of memory there is nothing beyond it


def test_every_rule_can_be_open() -> None:
    assert {name for _, name in OPEN.values()} == {rule.name for rule in RULES}


HELD = {
    "limits in force": (
        replace(facts({"Memory": 0, "PidsLimit": 0}), limits={"memory": GIB, "pids": 9, "swap": 0, "tcp": GIB}),
        None,
    ),
    "a quota": (facts({"NanoCpus": 0, "CpuQuota": 50_000}), ("CPU", "0.5 cores set")),
    "limits of one's own": (
        facts({"Memory": GIB // 2, "MemorySwap": GIB // 2, "NanoCpus": 500_000_000, "PidsLimit": 64}),
        ("memory", "512 MiB set"),
    ),
    "no log": (facts({"LogConfig": {"Type": "none"}}), ("log", "none")),
    "a bounded json log": (facts({"LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}}}), None),
    "the local log's own bound": (facts({"LogConfig": {"Type": "local", "Config": {}}}), None),
    "a read-only tmpfs": (mount("/proc/acpi", "ro"), None),
    "a cgroup tmpfs": (mount("/sys/fs/cgroup", "rw"), None),
    "tunnels of loaded modules": (replace(facts(), interfaces=("lo", "sit0", "tunl0")), ("interfaces", "lo")),
    "an exposed port that is not published": (facts(ports={"80/tcp": None}), None),
    "an empty token": (facts(config={"Env": ["API_TOKEN="]}), None),
    "volumes": (
        replace(facts(), mounts=(ROOT, VOLUME, replace(VOLUME, target="/volumes/x", options=frozenset({"rw"})))),
        ("volumes", "/volumes/data read-only, /volumes/x writable, its files can be executed"),
    ),
    "no groups": (with_process({"Groups": ""}), None),
    "a volume": (facts(mounts=[{"Type": "volume", "Source": "/var/lib/docker/volumes/x", "Propagation": ""}]), None),
}


@pytest.mark.parametrize(("found", "shown"), HELD.values(), ids=HELD.keys())
def test_what_is_bounded_otherwise_holds_too(found: ContainerFacts, shown: tuple[str, str] | None) -> None:
    findings = by_name(found)
    assert [finding for finding in findings.values() if finding.verdict == "open"] == []
    if shown:
        assert findings[shown[0]].found == shown[1]


def test_what_the_host_cannot_see_is_unknown_and_the_settings_are_judged_still() -> None:
    findings = by_name(ContainerFacts(facts().settings))
    unknown = {name for name, finding in findings.items() if finding.verdict == "unknown"}
    assert unknown == {
        *("interfaces", "user of every process", "supplementary groups", "capabilities", "NoNewPrivs"),
        *(
            "Seccomp filter",
            "TCP buffers",
            "memory-backed folders",
            "empty files in memory",
            "open files",
            "file size",
            "core dumps",
        ),
    }
    assert findings["memory"].found == "2048 MiB set"


def test_this_very_process_is_judged_by_what_the_host_sees() -> None:
    seen = read_facts({**inspected(), "Id": "/"}, [os.getpid()])  # each line of its cgroups has a slash
    findings = by_name(seen)
    assert findings["user of every process"].verdict == ("open" if os.getuid() == 0 else "held")
    assert findings["capabilities"].verdict == "open"  # the bounding set of an ordinary process is full
    assert "unknown" not in {findings[name].verdict for name in ("NoNewPrivs", "Seccomp filter")}


def test_a_log_driver_that_is_not_known_cannot_be_judged() -> None:
    assert by_name(facts({"LogConfig": {"Type": "splunk"}}))["log"].verdict == "unknown"


def test_secrets_are_named_and_not_spread() -> None:
    found = by_name(facts(config={"Env": ["API_TOKEN=hunter2", "http_proxy=http://me:hunter2@proxy"]}))
    assert "API_TOKEN" in found["no secrets in its settings"].found
    assert not [finding for finding in found.values() if "hunter2" in finding.found]


def test_names_from_a_container_are_shown_harmlessly() -> None:
    found = by_name(facts(config={"Env": ["TOKEN\x1b[2J\u202e" + "x" * 500 + "=1"]}))[
        "no secrets in its settings"
    ].found
    assert "\x1b" not in found
    assert "\u202e" not in found
    assert len(found) <= 120


def test_empty_files_are_promised_on_docker_only() -> None:
    loose = mount("/scratch", "rw", "size=1k")
    docker, podman = ({each.name: each for each in host_findings(loose, name)} for name in ("Docker", "Podman"))
    assert docker["empty files in memory"].breaks_a_promise
    assert not podman["empty files in memory"].breaks_a_promise
    assert "Podman cannot" in podman["empty files in memory"].advice
