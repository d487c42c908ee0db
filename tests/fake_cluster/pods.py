"""The pods of the fake cluster: each a container of the Docker engine, made as a kubelet would make it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import docker
from agent_tools.engines.kubernetes.seccomp import Profiles
from agent_tools.engines.package_data import shipped

PROFILES = Profiles.of(shipped("docker/seccomp.json").read_text())
ON_NODE = {profile.path: profile.text for profile in (PROFILES.sealed, PROFILES.loopback)}
Changed = Callable[[str, dict[str, Any]], None]
api = docker.APIClient(timeout=120, **docker.utils.kwargs_from_env())


def config_of(pod: dict[str, Any], url: str = "") -> dict[str, Any]:
    """The request that makes the container of a pod, as far as Docker has the pod's fields."""
    spec, box = pod["spec"], pod["spec"]["containers"][0]
    security, limits = box["securityContext"], box["resources"]["limits"]
    folders = folders_of(pod)
    shm = folders.pop("/dev/shm")
    group = spec["securityContext"]["fsGroup"]
    return {
        "Image": f"agent-tools:{box['image'].rpartition(':')[2]}",
        "Entrypoint": [],
        "Cmd": box["command"],
        "User": f"{security['runAsUser']}:{security['runAsGroup']}",
        "Env": [f"{each['name']}={each['value'].replace('$$', '$')}" for each in box["env"]],
        "Hostname": spec["hostname"],
        "WorkingDir": box["workingDir"],
        "Labels": {**labels_of(pod), "fake_cluster.pod": pod["metadata"]["name"], "fake_cluster.url": url},
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": security["capabilities"]["drop"],
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={profile_of(security)}"],
            "ReadonlyRootfs": security["readOnlyRootFilesystem"],
            "Tmpfs": {path: f"rw,exec,size={size},gid={group},mode=2777" for path, size in folders.items()},
            "ShmSize": int(shm),
            "Memory": int(limits["memory"]),
            "NanoCpus": int(limits["cpu"].rstrip("m")) * 1_000_000,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        },
    }


def folders_of(pod: dict[str, Any]) -> dict[str, str]:
    """The sizes of the folders in memory, by their places."""
    sizes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in pod["spec"]["volumes"]}
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    return {each["mountPath"]: sizes.pop(each["name"]) for each in mounts if each["name"] in sizes}  # its first place


def profile_of(security: dict[str, Any]) -> str:
    """The profile that the node has below this path.

    Raises:
        LookupError: it has none, and the container does not start.
    """
    path = security["seccompProfile"]["localhostProfile"]
    if path not in ON_NODE:
        raise LookupError(f"cannot load seccomp profile {path!r}: no such file or directory")
    return ON_NODE[path]


def labels_of(pod: dict[str, Any]) -> dict[str, str]:
    """Our labels, so that whoever looks for containers of ours finds this one."""
    labels: dict[str, str] = json.loads(pod["metadata"].get("annotations", {}).get("agent-tools/labels", "{}"))
    return labels


class Kubelet:
    """Runs pods. `changed` is called with the name and the status of one, from any thread."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self.url = ""

    def run(self, name: str, pod: dict[str, Any]) -> None:
        """Start a pod, and tell when it ends; returns at once."""
        threading.Thread(target=self._run, args=(name, pod), daemon=True).start()

    def _run(self, name: str, pod: dict[str, Any]) -> None:
        if pod["spec"]["containers"][0]["image"].endswith(":never"):
            reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self._changed(name, {"phase": "Pending", "conditions": [{**reason, "message": "Insufficient memory"}]})
            return
        try:
            container = api.create_container_from_config(config_of(pod, self.url))["Id"]
            pod["container"] = container
            api.start(container)
        except (docker.errors.APIError, LookupError) as exc:
            reason = "ErrImagePull" if "No such image" in str(exc) else "CreateContainerError"
            waiting = {"reason": reason, "message": str(exc)}
            self._changed(name, {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]})
            return
        started = {"startedAt": now()}
        self._changed(name, {"phase": "Running", "containerStatuses": [{"state": {"running": started}}]})
        with contextlib.suppress(Exception):  # it was removed meanwhile
            code = api.wait(container, timeout=3600)["StatusCode"]
            ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
            phase = "Failed" if code else "Succeeded"
            self._changed(name, {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]})


def remove(pod: dict[str, Any]) -> None:
    """Remove the container of a pod, if it has got one."""
    for _ in range(50):  # it may be just about to get one
        if "container" in pod or len(pod["status"]) > 1:
            break
        time.sleep(0.1)
    if "container" in pod:
        with contextlib.suppress(docker.errors.APIError):
            api.remove_container(pod["container"], force=True, v=True)


def log(pod: dict[str, Any]) -> bytes:
    """All that PID 1 of a pod has printed."""
    if "container" not in pod:
        return b""
    printed: bytes = api.logs(pod["container"])
    return printed


def now() -> str:
    """The time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
