import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.docker.payload import SHARES, SHARES_AHEAD, container_config
from agent_tools.engines.engine import SandboxSpec
from agent_tools.engines.first_process import CACHE_ENVIRONMENT, ENVIRONMENT, NETWORK_ENVIRONMENT
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.package_data import shipped
from agent_tools.engines.volumes import Volume
from agent_tools.guest.wire.gvisor import code_limit
from agent_tools.limits import GIB, MIB

GOLDEN = Path(__file__).parents[3] / "golden" / "container_config.json"
PROFILE = json.loads(shipped("docker/seccomp.json").read_text())
EPERM, ENOSYS = 1, 38


def spec(guest: int = 10001, **options: Any) -> SandboxSpec:
    return SandboxSpec(
        image="agent-tools:0123456789abcdef",
        run_dir=Path("/run/user/1000/agent_tools-1000/4242-123456-0a1b2c3d"),
        work_dir=Path("/srv/work"),
        guest=Guest(container_ids=(guest, guest), host_ids=(guest, guest)),
        isolation=Isolation(**options),
        labels={"agent_tools.host": "boot/pid:[1]", "agent_tools.owner": "4242-123456"},
    )


def at(config: dict[str, Any], path: str) -> Any:
    """The field at a dotted path; a number is a place in a list."""
    for part in path.split("."):
        config = config[int(part)] if isinstance(config, list) else config[part]
    return config


def test_the_whole_request_is_as_agreed() -> None:
    assert container_config(spec(), "<the seccomp profile>") == json.loads(GOLDEN.read_text())


def test_one_that_is_made_ahead_has_less_weight_and_nothing_else() -> None:
    usual, ahead = (container_config(each, "") for each in (spec(), replace(spec(), is_ahead=True)))
    assert ahead["HostConfig"].pop("CpuShares") == SHARES_AHEAD < SHARES
    assert ahead == usual


def test_skills_add_read_only_mounts_and_nothing_else() -> None:
    before, after = (container_config(replace(spec(), skills=each), "") for each in ((), (Path("/srv/s/0a/pdf"),)))
    mount = after["HostConfig"]["Mounts"].pop()
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == ("/srv/s/0a/pdf", "/skills/pdf", True)
    assert after == before


def test_skills_have_a_folder_in_memory_where_none_is_shared() -> None:
    config = container_config(replace(spec(), work_dir=None, skills=(Path("/srv/s/0a/pdf"), Path("/srv/s/0b/b"))), "")
    assert [mount["Target"] for mount in config["HostConfig"]["Mounts"]] == ["/run/kernel"]
    place = at(config, "HostConfig.Tmpfs")["/skills"]
    assert place == f"rw,nosuid,nodev,exec,size={128 * MIB},nr_inodes=262144,uid=10001,gid=10001,mode=0700"


def test_the_seccomp_profile_is_passed_on_word_for_word() -> None:
    text = shipped("docker/seccomp.json").read_text()
    options = at(container_config(spec(), text), "HostConfig.SecurityOpt")
    assert options == ["no-new-privileges:true", f"seccomp={text}"]


def test_a_list_adds_a_place_and_variables_and_nothing_else() -> None:
    policy = NetworkPolicy.read({"allow": ["pypi"], "headers": {"pypi.org": {"Authorization": "s3cret"}}})
    before, after = container_config(spec(), ""), container_config(spec(network=policy), "")
    place = after["HostConfig"]["Tmpfs"].pop("/opt/session")
    assert place == "rw,nosuid,nodev,exec,size=536870912,nr_inodes=262144,uid=10001,gid=10001,mode=0700"
    added = dict(line.split("=", 1) for line in after.pop("Env"))
    stock = dict(line.split("=", 1) for line in before.pop("Env"))
    assert added == {**stock, **NETWORK_ENVIRONMENT}
    assert {name for name in stock if added[name] != stock[name]} == {"PATH"}
    assert after == before
    assert "s3cret" not in json.dumps([after, added, place])


def test_a_cache_of_packages_adds_where_pip_asks_and_nothing_of_its_path() -> None:
    option = {"allow": ["pypi"]}
    plain = container_config(spec(network=NetworkPolicy.read(option)), "")
    cached = container_config(spec(network=NetworkPolicy.read({**option, "packages_cache": "/srv/wheels"})), "")
    added = set(cached.pop("Env")) - set(plain.pop("Env"))
    assert added == {f"{name}={value}" for name, value in CACHE_ENVIRONMENT.items()}
    assert cached == plain


def test_gvisors_own_threads_and_memory_come_on_top_of_the_limits_of_the_code() -> None:
    usual, gvisor = (container_config(spec(pids=40, **each), "") for each in ({}, {"runtime": "runsc"}))
    ours, theirs = gvisor["HostConfig"], usual["HostConfig"]
    assert ours.pop("Runtime") == "runsc"
    assert ours["Ulimits"].pop() == {"Name": "nproc", "Soft": 40, "Hard": 40}
    assert ours.pop("PidsLimit") > 5 * theirs.pop("PidsLimit")
    memory, _ = ours.pop("Memory"), theirs.pop("Memory")
    assert ours.pop("MemorySwap") == memory
    assert theirs.pop("MemorySwap") == code_limit(memory)
    assert gvisor == usual


FIELDS = [
    ({"network": "bridge"}, "HostConfig.NetworkMode", "bridge"),
    ({"network": "bridge"}, "NetworkDisabled", False),
    ({"memory": 512 * MIB}, "HostConfig.Memory", 512 * MIB),
    ({"memory": 512 * MIB}, "HostConfig.MemorySwap", 512 * MIB),
    ({"cpus": 0.5}, "HostConfig.NanoCpus", 500_000_000),
    ({"cpus": 2.01}, "HostConfig.NanoCpus", 2_010_000_000),
    ({"pids": 40}, "HostConfig.PidsLimit", 40),
    ({"shm": 2 * MIB}, "HostConfig.ShmSize", 2 * MIB),
    ({"tmp": MIB}, "HostConfig.Tmpfs./tmp", "rw,nosuid,nodev,noexec,size=1048576,nr_inodes=65536,mode=1777"),
    (
        {"home": 4 * MIB},
        "HostConfig.Tmpfs./home/sandbox",
        "rw,nosuid,nodev,noexec,size=4194304,nr_inodes=65536,uid=10001,gid=10001,mode=0700",
    ),
    ({"open_files": 200}, "HostConfig.Ulimits.0", {"Name": "nofile", "Soft": 200, "Hard": 200}),
    ({"file_size": GIB // 2}, "HostConfig.Ulimits.2", {"Name": "fsize", "Soft": GIB // 2, "Hard": GIB // 2}),
    ({"log": 64 * 1024}, "HostConfig.LogConfig.Config.max-size", "64k"),
    ({"log": 100_000}, "HostConfig.LogConfig.Config.max-size", "97k"),
    ({"runtime": "runsc"}, "HostConfig.Runtime", "runsc"),
    ({"gpus": 1}, "HostConfig.DeviceRequests", [{"Count": 1, "Capabilities": [["gpu"]]}]),
    ({"gpus": "all"}, "HostConfig.DeviceRequests", [{"Count": -1, "Capabilities": [["gpu"]]}]),
    ({"guest": 0}, "User", "0:0"),
]


@pytest.mark.parametrize(("options", "path", "value"), FIELDS, ids=lambda part: str(part)[:40])
def test_an_option_reaches_its_field(options: dict[str, Any], path: str, value: object) -> None:
    assert at(container_config(spec(**options), ""), path) == value


@pytest.mark.parametrize("name", ["Runtime", "DeviceRequests"])
def test_what_was_not_asked_for_is_left_to_the_engine(name: str) -> None:
    assert name not in container_config(spec(), "")["HostConfig"]


def test_variables_of_the_caller_come_on_top_of_ours() -> None:
    config = container_config(spec(env={"TOKEN": "a=b\nc", "LANG": "de_DE.UTF-8"}), "")
    expected = {**ENVIRONMENT, "TOKEN": "a=b\nc", "LANG": "de_DE.UTF-8"}
    assert Counter(config["Env"]) == Counter(f"{name}={value}" for name, value in expected.items())


def test_nothing_of_the_hosts_environment_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "secret" not in json.dumps(container_config(spec(), ""))


def test_only_the_two_folders_are_shared_with_the_host() -> None:
    host = container_config(spec(), "")["HostConfig"]
    assert [mount["Target"] for mount in host["Mounts"]] == [*("/run/kernel", "/workspace", "/mnt/data", "/home/user")]
    assert len({mount["Source"] for mount in host["Mounts"]}) == 2
    assert not {"Binds", "VolumesFrom", "Devices", "CapAdd", "PidMode", "UsernsMode", "PortBindings"} & host.keys()


def test_volumes_add_mounts_and_their_groups_and_nothing_else() -> None:
    volumes = (Volume("data", "/srv/data"), Volume("shared", "/srv/shared", True), Volume("lake", "a-lake"))
    before, after = (
        container_config(replace(spec(), volumes=each, groups=groups), "")
        for each, groups in (((), ()), (volumes, (4242,)))
    )
    # what is mounted below a folder would not be read-only with it
    bind = {"Type": "bind", "BindOptions": {"Propagation": "rprivate", "NonRecursive": True}}
    added = after["HostConfig"]["Mounts"][len(before["HostConfig"]["Mounts"]) :]
    assert added == [
        {**bind, "Source": "/srv/data", "Target": "/volumes/data", "ReadOnly": True},
        {**bind, "Source": "/srv/shared", "Target": "/volumes/shared", "ReadOnly": False},
        {
            "Type": "volume",
            "Source": "a-lake",
            "VolumeOptions": {"NoCopy": True},
            "Target": "/volumes/lake",
            "ReadOnly": True,
        },
    ]
    del after["HostConfig"]["Mounts"][-3:]
    assert after["HostConfig"].pop("GroupAdd") == ["4242"]
    assert after == before


# -- the seccomp profile ----------------------------------------------------------------------------------------------


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for rule in PROFILE["syscalls"] if name in rule["names"]]


def is_allowed(name: str) -> bool:
    return any(rule["action"] != "SCMP_ACT_ERRNO" for rule in rules(name))


def test_what_the_profile_does_not_name_is_not_permitted() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert PROFILE["defaultErrnoRet"] == EPERM


def test_the_profile_only_allows_or_refuses() -> None:
    assert {rule["action"] for rule in PROFILE["syscalls"]} == {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}


def test_no_call_is_allowed_twice_without_conditions() -> None:
    named = Counter(name for rule in PROFILE["syscalls"] if not rule.get("args") for name in rule["names"])
    assert [name for name, count in named.items() if count > 1] == []


def test_a_call_with_conditions_is_nowhere_allowed_without() -> None:
    conditional = {name for rule in PROFILE["syscalls"] if rule.get("args") for name in rule["names"]}
    free = {name for rule in PROFILE["syscalls"] if not rule.get("args") for name in rule["names"]}
    assert conditional & free == set()


DANGEROUS = """
    io_uring_setup io_uring_enter io_uring_register ptrace bpf mount umount2 move_mount open_tree fsopen fsconfig
    fsmount fspick pivot_root chroot unshare setns keyctl add_key request_key perf_event_open userfaultfd
    process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd open_by_handle_at name_to_handle_at kexec_load
    kexec_file_load init_module finit_module delete_module memfd_secret setxattr lsetxattr fsetxattr splice vmsplice
    tee shmget shmat shmctl msgget msgsnd semget semop mq_open io_setup io_submit reboot swapon swapoff syslog quotactl
    acct settimeofday clock_settime clock_adjtime adjtimex iopl ioperm modify_ldt uselib ustat sysfs lookup_dcookie
    fanotify_init fanotify_mark landlock_create_ruleset seccomp vhangup sethostname setdomainname nfsservctl
    move_pages migrate_pages remap_file_pages sync syncfs mbind set_mempolicy get_mempolicy set_mempolicy_home_node
    mlockall munlockall sched_setattr
"""


def test_a_dangerous_call_is_refused() -> None:
    assert [name for name in DANGEROUS.split() if is_allowed(name)] == []


@pytest.mark.parametrize("name", ["sched_setscheduler", "futex", "epoll_wait", "memfd_create", "rseq", "getrandom"])
def test_a_call_that_kernels_need_is_allowed(name: str) -> None:
    assert {rule["action"] for rule in rules(name)} == {"SCMP_ACT_ALLOW"}  # libzmq aborts without the first


@pytest.mark.parametrize("name", ["clone3", "openat2", "fchmodat2"])
def test_a_call_that_hides_its_arguments_does_not_exist(name: str) -> None:
    assert [(rule["action"], rule["errnoRet"]) for rule in rules(name)] == [("SCMP_ACT_ERRNO", ENOSYS)]


def test_sockets_are_of_four_families_and_of_the_internets_two_usual_protocols() -> None:
    unix, netlink = {0: (None, 1)}, {0: (None, 16), 2: (None, 0)}
    internet = [
        {0: (None, family), 1: (15, kind), 2: (None, protocol)}
        for family in (2, 10)
        for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17))
    ]
    found = [{arg["index"]: _compared(arg) for arg in rule["args"]} for rule in rules("socket")]
    assert sorted(found, key=str) == sorted([unix, netlink, *internet], key=str)


def _compared(arg: dict[str, Any]) -> tuple[int | None, int]:
    """The bits that are looked at, None for all of them, and what they must be."""
    return (arg["value"], arg["valueTwo"]) if arg["op"] == "SCMP_CMP_MASKED_EQ" else (None, arg["value"])


def test_no_rule_compares_otherwise_than_for_equality() -> None:
    ops = {arg["op"] for rule in PROFILE["syscalls"] for arg in rule.get("args", ())}
    assert ops == {"SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ"}


def test_clone_makes_no_namespaces() -> None:
    (rule,) = rules("clone")
    namespaces = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    assert rule["args"] == [{"index": 0, "value": namespaces, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]


def test_no_foreign_calling_convention_gets_around_the_profile() -> None:
    assert PROFILE["archMap"] == [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
    ]
    assert "architectures" not in PROFILE
