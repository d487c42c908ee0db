"""Checks of the facts of the host that code can learn."""

from __future__ import annotations

import os
import platform
from typing import Callable

from agent_tools.conformance.guest.answers import held, listed, opened, opens, read

ENGINE_SOCKETS = ("docker.sock", "containerd/containerd.sock", "podman/podman.sock", "crio/crio.sock")
CREDENTIALS = "~/.ssh /root/.ssh ~/.aws/credentials ~/.docker/config.json ~/.kube/config ~/.netrc /run/secrets \
/var/run/secrets/kubernetes.io/serviceaccount/token".split()
SECRET_WORDS = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "_PROXY", "PRIVATE_KEY", "API_KEY", "ACCESS_KEY")


def _environment() -> list[str]:
    names = [name for name, value in os.environ.items() if value and any(w in name.upper() for w in SECRET_WORDS)]
    return listed(sorted(names), "no secrets, no proxy")


def _credentials() -> list[str]:
    paths = [os.path.expanduser(path) for path in CREDENTIALS]
    return listed(sorted({path for path in paths if opens(path, os.O_RDONLY) and not _is_empty(path)}), "none found")


def _is_empty(path: str) -> bool:
    return os.path.isdir(path) and not os.listdir(path)


def _engine_socket() -> list[str]:
    paths = [folder + "/" + name for folder in ("/var/run", "/run") for name in ENGINE_SOCKETS]
    return listed([path for path in paths if os.path.exists(path)], "none found")


def _kernel_memory() -> list[str]:
    found = [path for path in ("/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg") if opens(path, os.O_RDONLY)]
    if opens("/proc/kcore", os.O_RDONLY):
        with open("/proc/kcore", "rb", 0) as kcore:
            found += ["/proc/kcore"] if kcore.read(4) else []
    return listed(found, "not readable")


def _host_processes() -> list[str]:
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    names = {read("/proc/" + pid + "/comm").strip() for pid in pids}
    seen = str(len(pids)) + " processes"
    return opened(seen + ", the kernel's among them") if "kthreadd" in names else held(seen + ", none of the kernel's")


def _init_memory() -> list[str]:
    found = [path for path in ("/proc/1/mem", "/proc/1/environ") if os.getpid() != 1 and opens(path, os.O_RDONLY)]
    return listed(found, "not readable")


def _host_paths() -> list[str]:
    roots = {line.split()[3] for line in read("/proc/self/mountinfo").splitlines() if line.count(" ") > 5}
    shown = sorted(root for root in roots if root.count("/") > 1)
    return ["info", "mountinfo names " + ", ".join(shown) if shown else "mountinfo names none"]


def _shared_kernel() -> list[str]:
    return ["info", "kernel " + platform.release() + ", load " + " ".join(read("/proc/loadavg").split()[:3])]


def _name_servers() -> list[str]:
    lines = [line.split() for line in read("/etc/resolv.conf").splitlines()]
    words = [word for line in lines if line[:1] in (["nameserver"], ["search"], ["domain"]) for word in line[1:]]
    return listed(words, "resolv.conf names none")


CHECKS: dict[str, Callable[[], list[str]]] = {
    "environment": _environment,
    "credentials": _credentials,
    "engine_socket": _engine_socket,
    "kernel_memory": _kernel_memory,
    "host_processes": _host_processes,
    "init_memory": _init_memory,
    "host_paths": _host_paths,
    "shared_kernel": _shared_kernel,
    "name_servers": _name_servers,
}
