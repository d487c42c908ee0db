"""The pod of a sandbox: a SandboxSpec as a Kubernetes pod specification.

Pure functions, so that one test can check the whole pod. It passes Pod Security's level "restricted". Field names:
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/

A pod has no field for some limits: PID 1 sets those of descriptors, file size and core dumps at its start
(guest/pid1/supervisor.py); that of processes is the kubelet's (`podPidsLimit`); folders in memory cannot be made
"noexec". It has no log limit either, so nothing is logged: output of PID 1 and of code is discarded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from agent_tools.engines.context import tag_for
from agent_tools.engines.engine import GUEST_SKILLS, GUEST_WORK_DIR, MAX_SKILL_BYTES, SandboxSpec
from agent_tools.engines.first_process import COMMAND, GUEST_HOME, GUEST_SESSION, PYTHON, environment
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.engines.kubernetes.seccomp import Profiles
from agent_tools.engines.oci_runtime import kind_of
from agent_tools.engines.package_data import shipped
from agent_tools.engines.recipe import RecipeLike
from agent_tools.engines.volumes import Volume
from agent_tools.errors import SandboxStartError
from agent_tools.guest.wire.gvisor import engine_limit
from agent_tools.guest.wire.words import WORK_DIR_NAMES
from agent_tools.limits import MIB

CONTAINER = "sandbox"
USER = 10001
HAND_OVER = [*PYTHON, "agent_tools_guest.pid1.hand_over"]
"""The program to execute in the pod; its stdin and stdout are the sandbox's."""
HOLD_SECONDS = 120  # seconds within which the program must be executed, or the pod ends
FOR_EVER = 0

MANAGED_BY = {"app.kubernetes.io/managed-by": "agent-tools"}
HOST_LABEL = "agent-tools/host"  # a digest: a label has 63 characters, and no slash
LABELS_ANNOTATION = "agent-tools/labels"
_GPU = "nvidia.com/gpu"
_TERMINATION_LOG = "/root/termination-log"
"""A path that code cannot access. It is a file of the node, outside of all limits, and every pod has one."""


@dataclass(frozen=True)
class PodMaker:
    """Builds the pods of one engine."""

    options: KubernetesOptions
    profiles: Profiles

    def pod(self, spec: SandboxSpec, name: str) -> dict[str, Any]:
        """Return the body of POST .../pods.

        Raises:
            SandboxStartError: the spec asks for something that a pod cannot have, or that cannot be enforced here.
        """
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.options.namespace, **metadata(spec)},
            "spec": self.pod_spec(spec, HOLD_SECONDS),
        }

    def pod_spec(self, spec: SandboxSpec, hold_seconds: int) -> dict[str, Any]:
        """Return the pod's `spec`; its PID 1 waits `hold_seconds` for a host, FOR_EVER without a limit.

        A pod that waits for ever has no deadline, since that would count from the pod's start and not from its
        session's: its claim has one.
        """
        limits = spec.isolation
        runtime = limits.runtime or self.options.runtime_class
        self._check(spec, runtime)
        return {
            "restartPolicy": "Never",
            **({"activeDeadlineSeconds": round(self.options.deadline)} if hold_seconds != FOR_EVER else {}),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostNetwork": False,
            "hostPID": False,
            "hostIPC": False,
            "shareProcessNamespace": False,
            **({"hostUsers": False} if self.options.user_namespaces else {}),
            "hostname": "sandbox",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "securityContext": {
                "fsGroup": USER,
                **(
                    {"fsGroupChangePolicy": "OnRootMismatch"} if spec.volumes else {}
                ),  # else each start visits all files
                "seccompProfile": self._seccomp(limits),
            },
            **({"runtimeClassName": runtime} if runtime else {}),
            **({"imagePullSecrets": [{"name": self.options.pull_secret}]} if self.options.pull_secret else {}),
            **({"nodeSelector": dict(self.options.node_selector)} if self.options.node_selector else {}),
            "containers": [self._container(spec, hold_seconds)],
            "volumes": [
                *(
                    {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
                    for name, (_, size) in _folders(spec).items()
                ),
                *(_claimed(number, each) for number, each in enumerate(spec.volumes)),
            ],
        }

    def _container(self, spec: SandboxSpec, hold_seconds: int) -> dict[str, Any]:
        limits = spec.isolation
        return {
            "name": CONTAINER,
            "image": spec.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [*COMMAND, "hold", str(limits.open_files), str(limits.file_size), str(hold_seconds)],
            "workingDir": "/",
            # a `$` would begin a reference to another variable, $(NAME), or be an escape
            "env": [{"name": name, "value": value.replace("$", "$$")} for name, value in environment(limits).items()],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "privileged": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": self._seccomp(limits),
                "procMount": "Default",
            },
            "resources": self._resources(limits),
            "volumeMounts": [
                *({"name": name, "mountPath": path} for name, (path, _) in _folders(spec).items()),
                *({"name": WORK_DIR_VOLUME, "mountPath": path} for path in WORK_DIR_NAMES),
                *(
                    {"name": f"volume-{number}", "mountPath": each.target, "readOnly": not each.is_writable}
                    for number, each in enumerate(spec.volumes)
                ),
            ],
            "terminationMessagePath": _TERMINATION_LOG,
            "terminationMessagePolicy": "File",
        }

    def _resources(self, limits: Isolation) -> dict[str, Any]:
        gpus = {_GPU: str(limits.gpus)} if limits.gpus else {}
        requested = min(self.options.memory_request, limits.memory)
        is_gvisor = kind_of(limits.runtime or self.options.runtime_class) == "gvisor"
        cpus = min(self.options.cpu_request, limits.cpus)
        return {
            "requests": {"cpu": _cores(cpus), "memory": str(requested), "ephemeral-storage": str(MIB), **gpus},
            "limits": {
                "cpu": _cores(limits.cpus),
                "memory": str(engine_limit(limits.memory) if is_gvisor else limits.memory),
                "ephemeral-storage": str(16 * MIB),
                **gpus,
            },
        }

    def _seccomp(self, limits: Isolation) -> dict[str, str]:
        if self.options.seccomp == "runtime-default":
            return {"type": "RuntimeDefault"}
        profile = self.profiles.loopback if limits.policy else self.profiles.sealed
        return {"type": "Localhost", "localhostProfile": profile.path}

    def _check(self, spec: SandboxSpec, runtime: str) -> None:
        limits = spec.isolation
        if spec.run_dir is not None or spec.work_dir is not None:
            raise SandboxStartError("A pod shares no folder with this machine: leave `transport` at 'auto' or 'stdio'.")
        if limits.engine_network != "none":
            raise SandboxStartError(
                f"network={limits.engine_network!r:.80} is a network of a Docker engine; a pod takes 'none' or a list."
            )
        if folders := [each.name for each in spec.volumes if each.folder]:
            raise SandboxStartError(
                f"Volume {folders[0]} is a folder of this machine; a pod takes a claim by name: {folders[0]}=CLAIM."
            )
        if limits.isolation != "auto" and (limits.isolation == "container") == bool(runtime):
            raise SandboxStartError(
                f"isolation={limits.isolation!r} is not possible here: a cluster names its runtimes as it likes. Name "
                "the RuntimeClass of gVisor, as `runtime` or in AGENT_TOOLS_KUBERNETES_RUNTIME_CLASS; none for runc."
            )
        if limits.gpus == "all":
            raise SandboxStartError("gpus='all' is not possible with Kubernetes: give a number.")
        if (limits.policy or runtime) and not self.options.holds_policies:
            reason = f"the runtime {runtime!r} has its own kernel"
            what = "an egress allowlist needs sockets" if limits.policy else reason
            raise SandboxStartError(
                f"Nothing here seals such a sandbox: {what}, so only a network policy can. If the cluster's network "
                "holds policies, set AGENT_TOOLS_KUBERNETES_NETWORK_POLICY=enforced."
            )


def metadata(spec: SandboxSpec) -> dict[str, dict[str, str]]:
    """Return the labels and annotations by which a sandbox is found again."""
    host = spec.labels.get("agent_tools.host", "")
    return {
        "labels": {**MANAGED_BY, HOST_LABEL: digest(host)},
        "annotations": {LABELS_ANNOTATION: json.dumps(dict(spec.labels), sort_keys=True)},
    }


def digest(text: str) -> str:
    """Return a digest of a text, for the value of a label."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


WORK_DIR_VOLUME = "work-dir"


def _folders(spec: SandboxSpec) -> dict[str, tuple[str, int]]:
    """Return the folders in memory: their paths and sizes in bytes, by name."""
    limits = spec.isolation
    return {
        "tmp": ("/tmp", limits.tmp),
        "var-tmp": ("/var/tmp", limits.tmp),
        "home": (GUEST_HOME, limits.home),
        "shm": ("/dev/shm", limits.shm),
        WORK_DIR_VOLUME: (GUEST_WORK_DIR, spec.work_dir_bytes),
        **({"skills": (GUEST_SKILLS, len(spec.skills) * MAX_SKILL_BYTES)} if spec.skills else {}),
        **({"session": (GUEST_SESSION, limits.installed)} if limits.policy else {}),
    }


def _claimed(number: int, volume: Volume) -> dict[str, Any]:
    claim = {"claimName": volume.source, "readOnly": not volume.is_writable}
    return {"name": f"volume-{number}", "persistentVolumeClaim": claim}


def _cores(cpus: float) -> str:
    return f"{max(1, round(cpus * 1000))}m"


def pod_maker(options: KubernetesOptions, namespace: str) -> PodMaker:
    """Return the builder of pods; `namespace` is used if the options name none."""
    options = replace(options, namespace=options.namespace or namespace)
    return PodMaker(options, Profiles.of(shipped("docker/seccomp.json").read_text()))


def reference(repository: str, recipe: RecipeLike = ()) -> str:
    """Return the reference of the image for nodes to pull. Its tag is always the fingerprint of its contents."""
    return f"{repository}:{tag_for(recipe).partition(':')[2]}"
