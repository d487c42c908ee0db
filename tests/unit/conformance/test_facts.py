import math
from pathlib import Path

import pytest

from agent_tools.conformance.container_settings import ContainerSettings
from agent_tools.conformance.facts import ContainerFacts, read_facts

ID = "70719e7558c7"
MOUNTINFO = f"""72 48 0:39 / / ro,relatime master:2 - overlay overlay rw,lowerdir=/a:/b
88 74 0:47 / /dev/shm rw,nosuid,noexec - tmpfs shm rw,size=65536k
90 72 254:0 /home/me /workspace rw,relatime shared:5 - ext4 /dev/vda rw,discard
91 72 254:0 /{ID}/hosts /etc/hosts rw,relatime - ext4 /dev/vda rw
"""
NET = """Inter-|   Receive                 |  Transmit
 face |bytes    packets errs drop |bytes    packets
    lo:       0       0    0    0        0       0
  eth0:     200       2    0    0        0       0
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             1048576              unlimited            bytes
Max open files            1024                 4096                 files
Max nice priority         0                    0
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A host with /proc and cgroups of which one process is in the container."""
    folder = tmp_path / "proc" / "11"
    (folder / "net").mkdir(parents=True)
    (folder / "status").write_text("Name:\tpython\nUid:\t5\t5\t5\t5\nGroups:\t\nNoNewPrivs:\t1\n")
    (folder / "limits").write_text(LIMITS)
    (folder / "mountinfo").write_text(MOUNTINFO)
    (folder / "net" / "dev").write_text(NET)
    (folder / "cgroup").write_text(f"0::/docker/{ID}\n")
    return tmp_path


def read(machine: Path, *pids: int) -> ContainerFacts:
    return read_facts({"Id": ID}, pids, proc=machine / "proc", cgroup=machine / "cgroup")


def test_a_process_is_read_with_its_status_and_hard_limits(machine: Path) -> None:
    (process,) = read(machine, 11).processes
    assert process.status["Uid"] == "5\t5\t5\t5"
    assert process.status["Groups"] == ""
    assert process.limits["Max file size"] == "unlimited"
    assert process.limits["Max open files"] == "4096"


def test_mounts_and_interfaces_are_those_of_the_container(machine: Path) -> None:
    found = read(machine, 11)
    assert found.interfaces == ("lo", "eth0")
    assert [mount.target for mount in found.mounts] == ["/", "/dev/shm", "/workspace", "/etc/hosts"]
    assert "ro" in found.mounts[0].options
    assert (found.mounts[1].kind, "size=65536k" in found.mounts[1].options) == ("tmpfs", True)
    assert [mount.is_shared for mount in found.mounts] == [False, False, True, False]


@pytest.mark.parametrize(
    ("mount", "file_system", "is_read_only"), [("ro", "rw", True), ("rw", "ro", True), ("rw", "rw", False)]
)
def test_a_mount_is_read_only_when_it_or_its_file_system_is(
    machine: Path, mount: str, file_system: str, is_read_only: bool
) -> None:
    (machine / "proc" / "11" / "mountinfo").write_text(f"1 0 0:39 / / {mount} - overlay overlay {file_system}\n")
    assert ("ro" in read(machine, 11).mounts[0].options) == is_read_only


def test_a_process_without_a_cgroup_of_its_own_is_known_by_its_mounts(machine: Path) -> None:
    (machine / "proc" / "11" / "cgroup").write_text("0::/user.slice\n")
    mounted = f"1 0 8:1 /containers/{ID}/hostname /etc/hostname ro - ext4 /dev/sda rw\n"
    (machine / "proc" / "11" / "mountinfo").write_text(mounted)
    found = read(machine, 11)
    assert [mount.target for mount in found.mounts] == ["/etc/hostname"]
    assert found.limits == dict.fromkeys(("memory", "swap", "tcp", "pids", "cpu"), math.inf), (
        "those of others are not its own"
    )


def test_files_that_the_kernel_does_not_have_need_no_mask(machine: Path) -> None:
    for name in ("keys", "sys", "timer_list"):
        (machine / "proc" / name).touch()
    assert read(machine, 11).absent == {"/proc/kcore", "/proc/sysrq-trigger"}


def test_a_process_of_another_machine_that_has_the_same_pid_is_not_taken(machine: Path) -> None:
    (machine / "proc" / "11" / "cgroup").write_text("0::/user.slice\n")
    (machine / "proc" / "11" / "mountinfo").write_text(MOUNTINFO.replace(ID, "another"))
    assert read(machine, 11) == ContainerFacts(ContainerSettings.of({"Id": ID}))


def test_processes_that_are_gone_are_left_out(machine: Path) -> None:
    assert len(read(machine, 10, 11, 12).processes) == 1


def test_limits_in_force_are_read_from_cgroup_2(machine: Path) -> None:
    group = machine / "cgroup" / "docker" / ID
    group.mkdir(parents=True)
    for name, text in {
        "memory.max": "max",
        "memory.swap.max": "0",
        "pids.max": "256",
        "cpu.max": "50000 100000",
    }.items():
        (group / name).write_text(f"{text}\n")
    assert read(machine, 11).limits == {"memory": math.inf, "swap": 0, "tcp": math.inf, "pids": 256, "cpu": 50_000}


def test_limits_in_force_are_read_from_cgroup_1_where_swap_includes_memory(machine: Path) -> None:
    (machine / "proc" / "11" / "cgroup").write_text(
        f"8:pids:/docker/{ID}\n4:memory:/docker/{ID}\n1:cpu,cpuacct:/docker/{ID}\n0::/docker/{ID}\n"
    )
    files = {
        "memory/memory.limit_in_bytes": "1000",
        "memory/memory.memsw.limit_in_bytes": "1500",
        "memory/memory.kmem.tcp.limit_in_bytes": "700",
        "pids/pids.max": "max",
        "cpu/cpu.cfs_quota_us": "-1",
    }
    for name, text in files.items():
        path = machine / "cgroup" / name.split("/")[0] / "docker" / ID / name.split("/")[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert read(machine, 11).limits == {"memory": 1000, "swap": 500, "tcp": 700, "pids": math.inf, "cpu": math.inf}


def test_no_limit_is_a_very_large_number_in_cgroup_1(machine: Path) -> None:
    (machine / "proc" / "11" / "cgroup").write_text(f"4:memory:/docker/{ID}\n")
    group = machine / "cgroup" / "memory" / "docker" / ID
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.memsw.limit_in_bytes").write_text("9223372036854771712\n")
    assert read(machine, 11).limits == {"memory": math.inf, "swap": math.inf}


def test_limits_that_cannot_be_read_are_absent(machine: Path) -> None:
    assert read(machine, 11).limits == {}
