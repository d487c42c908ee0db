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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from agent_tools.engines.context import shipped, tag_for
from agent_tools.engines.engine import (
    COMMAND,
    GUEST_HOME,
    GUEST_SESSION,
    GUEST_SKILLS,
    GUEST_WORK_DIR,
    MAX_SKILL_BYTES,
    PYTHON,
    Isolation,
    RecipeLike,
    SandboxSpec,
    environment,
)
from agent_tools.engines.kubernetes.answers import table, tables
from agent_tools.engines.kubernetes.progress import Progress
from agent_tools.engines.volumes import Volume
from agent_tools.errors import InvalidParams, SandboxStartError
from agent_tools.guest.wire.words import WORK_DIR_NAMES
from agent_tools.limits import MIB, size_of

# The settings of the Kubernetes engine: AGENT_TOOLS_KUBERNETES_<NAME>, and the address in the engine's name.

Seccomp = Literal["localhost", "runtime-default"]
NetworkPolicies = Literal["unknown", "enforced"]

_LEAST = {"memory_request": MIB, "cpu_request": 0.001, "deadline": 60, "start_timeout": 1, "timeout": 1}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([a-zA-Z0-9./_-]{1,316})=([a-zA-Z0-9._-]{0,63})")
_REPOSITORY = re.compile(r"[a-z0-9][a-zA-Z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


@dataclass(frozen=True)
class KubernetesOptions:
    """The settings of the Kubernetes engine.

    Raises:
        InvalidParams: a value cannot be used, or options contradict each other.
    """

    kubeconfig: str = ""
    """Files with clusters and credentials, as in KUBECONFIG; '' for ~/.kube/config, or for this process's own pod."""
    context: str = ""
    """The context of the kubeconfig; '' for its current one, or for the cluster that this process runs in."""
    namespace: str = ""
    """The namespace of the sandboxes; '' for that of the context, or of this process's pod."""
    image: str = "agent-tools"
    """The repository of the sandbox's image, as nodes pull it, without a tag: the tag is the image's fingerprint."""
    pull_secret: str = ""
    """The name of the secret that pulls it; '' for none."""
    runtime_class: str = ""
    """The RuntimeClass of sandboxes that name no `runtime`: 'gvisor', 'kata'; '' for the cluster's default."""
    seccomp: Seccomp = "localhost"
    """'localhost' for our profiles, which every node must have; 'runtime-default' for the node's own, which seals
    nothing: then the network policy must be enforced."""
    network_policy: NetworkPolicies = "unknown"
    """'enforced' if the cluster's network holds policies, and there is one for the namespace. By default nobody counts
    on that: sandboxes have no sockets of the internet at all, and an egress allowlist is refused."""
    user_namespaces: bool = False
    """Run the pods in user namespaces (`hostUsers: false`), where the nodes can."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes for sandboxes, as 'name=value,name=value'."""
    memory_request: int = 80 * MIB
    """Bytes that the scheduler reserves for a sandbox; what it may use is `memory`."""
    cpu_request: float = 0.02
    """CPU cores reserved likewise."""
    deadline: float = 86_400.0
    """Seconds after which the cluster ends a sandbox, whatever we do."""
    start_timeout: float = 60.0
    """Seconds until a pod must run: its node found, its image pulled."""
    timeout: float = 60.0
    """Seconds that one answer of the API server may take."""
    warm_pool: bool = False
    """Take sandboxes out of a SandboxWarmPool, where there is one for the options asked for (agent-sandbox)."""

    def __post_init__(self) -> None:
        for name in ("namespace", "pull_secret", "runtime_class"):
            if getattr(self, name) and not _NAME.fullmatch(getattr(self, name)):
                raise _unusable(name, getattr(self, name), "give the name of an object of the cluster")
        if not _REPOSITORY.fullmatch(self.image):
            raise _unusable("image", self.image, "give a repository without a tag: registry.example.com/sandbox")
        for name, choices in (("seccomp", Seccomp), ("network_policy", NetworkPolicies)):
            if getattr(self, name) not in get_args(choices):
                raise _unusable(name, getattr(self, name), f"give one of {', '.join(get_args(choices))}")
        for name, least in _LEAST.items():
            if not least <= getattr(self, name) < 2**63:
                raise _unusable(name, getattr(self, name), f"give a number of at least {least:,}")
        if self.seccomp == "runtime-default" and not self.holds_policies:
            raise InvalidParams(
                "seccomp='runtime-default' leaves sandboxes their sockets, so that only a network policy seals them. "
                "Set AGENT_TOOLS_KUBERNETES_NETWORK_POLICY=enforced if the cluster's network enforces policies."
            )

    @property
    def holds_policies(self) -> bool:
        """True if the operator says that the cluster's network enforces policies."""
        return self.network_policy == "enforced"

    @classmethod
    def read(cls, word: str, given: Mapping[str, str]) -> KubernetesOptions:
        """Return the options from the engine's name, `kubernetes[://CONTEXT[/NAMESPACE]]`, and from variables.

        Raises:
            InvalidParams: an option is unknown, or a value cannot be used.
        """
        readers = {each.name: _READERS.get(str(each.type), _text) for each in fields(cls)}
        if unknown := sorted(given.keys() - readers.keys()):
            raise InvalidParams(
                f"AGENT_TOOLS_KUBERNETES_{unknown[0].upper()} is unknown: there are {', '.join(sorted(readers))}."
            )
        values: dict[str, Any] = {name: readers[name](name, value) for name, value in given.items()}
        return cls(**{**values, **_addressed(word)})


def _addressed(word: str) -> dict[str, str]:
    """Parse the address. Names of contexts may have slashes: the namespace comes after the last one."""
    address = word.partition("://")[2]
    context, slash, namespace = address.rpartition("/")
    found = {"context": context, "namespace": namespace} if slash else {"context": address}
    return {name: value for name, value in found.items() if value}


def _unusable(name: str, value: object, advice: str) -> InvalidParams:
    return InvalidParams(f"AGENT_TOOLS_KUBERNETES_{name.upper()}={str(value)!r:.80} is not usable: {advice}.")


def _text(_name: str, value: str) -> str:
    return value


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _unusable(name, value, "give a number") from None


def _size(name: str, value: str) -> int:
    size = size_of(value)
    if not isinstance(size, int):
        raise _unusable(name, value, "give bytes, or a size such as 80m")
    return size


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("1", "0", "true", "false", "yes", "no"):
        raise _unusable(name, value, "give 1 or 0")
    return value.lower() in ("1", "true", "yes")


def _labels(name: str, value: str) -> dict[str, str]:
    found = [_LABEL.fullmatch(part.strip()) for part in value.split(",")]
    if not all(found):
        raise _unusable(name, value, "give labels as name=value,name=value")
    return {match[1]: match[2] for match in found if match}


_READERS: dict[str, Callable[[str, str], Any]] = {
    "int": _size,
    "float": _number,
    "bool": _truth,
    "Mapping[str, str]": _labels,
}


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
        """Return the pod's `spec`; its PID 1 waits `hold` seconds for a host, FOR_EVER without a limit.

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
            "env": [{"name": name, "value": _literal(value)} for name, value in environment(limits).items()],
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
        memory = min(self.options.memory_request, limits.memory)
        cpus = min(self.options.cpu_request, limits.cpus)
        return {
            "requests": {"cpu": _cores(cpus), "memory": str(memory), "ephemeral-storage": str(MIB), **gpus},
            "limits": {
                "cpu": _cores(limits.cpus),
                "memory": str(limits.memory),
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


def _literal(value: str) -> str:
    """Escape text that Kubernetes would read as a reference to another variable, $(NAME), or as an escape."""
    return value.replace("$", "$$")


# Warm pods of agent-sandbox (SIG Apps): the pool to make once, and the claim that takes one out of it. Pure.
#
# A pool holds pods of one spec, so its name carries a digest of the spec: an engine takes a pod only out of the pool
# that holds just what it would make itself, release and options included. Environment variables or volumes in a claim
# would make it start cold, and a claim that is not deleted gets its pod made anew. The API:
# extensions.agents.x-k8s.io/v1beta1, https://github.com/kubernetes-sigs/agent-sandbox.


API_VERSION = "extensions.agents.x-k8s.io/v1beta1"
CLAIMS, POOLS = "sandboxclaims", "sandboxwarmpools"
CLAIM_ANNOTATION = "agent-tools/claim"
POD_NAME = "agents.x-k8s.io/pod-name"
FINISHED_SECONDS = 60  # seconds for which a claim is kept whose pod has ended
_ENDED = ("ClaimExpired", "SandboxExpired", "TemplateNotFound", "WarmPoolNotFound", "InvalidMetadata")


def pool_name(maker: PodMaker, spec: SandboxSpec) -> str:
    """Return the name of the pool for sandboxes of this spec."""
    content = json.dumps(maker.pod_spec(spec, FOR_EVER), sort_keys=True)
    return f"agent-tools-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def pool(maker: PodMaker, spec: SandboxSpec, size: int) -> list[dict[str, Any]]:
    """Return the SandboxTemplate and the SandboxWarmPool that keep `size` sandboxes of this spec waiting."""
    name, namespace = pool_name(maker, spec), maker.options.namespace
    named = {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)}
    template = {
        "podTemplate": {"metadata": {"labels": dict(MANAGED_BY)}, "spec": maker.pod_spec(spec, FOR_EVER)},
        "service": False,
        "networkPolicy": {"ingress": [], "egress": []},  # the controller's default policy would allow the internet
        "envVarsInjectionPolicy": "Disallowed",
        "volumeClaimTemplatesPolicy": "Disallowed",
    }
    return [
        {"apiVersion": API_VERSION, "kind": "SandboxTemplate", "metadata": named, "spec": template},
        {
            "apiVersion": API_VERSION,
            "kind": "SandboxWarmPool",
            "metadata": named,
            "spec": {"replicas": size, "sandboxTemplateRef": {"name": name}, "updateStrategy": {"type": "Recreate"}},
        },
    ]


def claim(maker: PodMaker, spec: SandboxSpec, name: str) -> dict[str, Any]:
    """Return the claim of one sandbox of this spec."""
    found = metadata(spec)
    on_pod = {**found, "annotations": {**found["annotations"], CLAIM_ANNOTATION: name}}
    end = datetime.now(UTC) + timedelta(seconds=round(maker.options.deadline))
    return {
        "apiVersion": API_VERSION,
        "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": maker.options.namespace, **found},
        "spec": {
            "warmPoolRef": {"name": pool_name(maker, spec)},
            "lifecycle": {
                "shutdownTime": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "shutdownPolicy": "Delete",
                "ttlSecondsAfterFinished": FINISHED_SECONDS,
            },
            "additionalPodMetadata": on_pod,
        },
    }


def has_ready(found: dict[str, Any]) -> bool:
    """Return whether a SandboxWarmPool has a ready sandbox."""
    ready = table(found.get("status")).get("readyReplicas")
    return isinstance(ready, int) and ready > 0


def progress_of_claim(found: dict[str, Any]) -> Progress:
    """Read the progress of a claim; `pod` is the name of the Sandbox that it got."""
    status = table(found.get("status"))
    name = table(status.get("sandbox")).get("name")
    for condition in tables(status.get("conditions")):
        if condition.get("type") == "Ready" and condition.get("status") == "True" and isinstance(name, str) and name:
            return Progress(is_running=True, pod=name)
        if condition.get("reason") in _ENDED:
            return Progress(failure=f"{condition['reason']}: {condition.get('message')!s:.300}")
    return Progress(waits_for="a sandbox out of the pool")


def pod_name_of(sandbox: dict[str, Any], name: str) -> str:
    """Return the name of a Sandbox's pod: the Sandbox's own name, unless the pod came from a pool."""
    adopted = table(table(sandbox.get("metadata")).get("annotations")).get(POD_NAME)
    return adopted if isinstance(adopted, str) and adopted else name


# The two seccomp profiles that the nodes must have, made of the profile for the Docker engine. Pure functions.
#
# `loopback` is that profile word for word. `sealed` allows sockets of AF_UNIX only, so code cannot reach the cluster's
# network, whether or not it enforces policies. Their names carry a hash of their
# content, so a node with an old profile starts no sandbox of a new release.


FOLDER = "agent-tools"  # below the kubelet's folder of profiles
AF_UNIX = 1
EAFNOSUPPORT = 97
_REFUSAL = {
    "comment": "sockets of AF_UNIX and no others",
    "names": ["socket"],
    "action": "SCMP_ACT_ERRNO",
    "errnoRet": EAFNOSUPPORT,
    "args": [{"index": 0, "value": AF_UNIX, "valueTwo": 0, "op": "SCMP_CMP_NE"}],
}


@dataclass(frozen=True)
class Profile:
    """One profile: its kind and its JSON text."""

    kind: str
    text: str

    @property
    def file_name(self) -> str:
        """The name of its file on a node."""
        return f"{self.kind}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}.json"

    @property
    def path(self) -> str:
        """The path below the kubelet's folder of profiles."""
        return f"{FOLDER}/{self.file_name}"


@dataclass(frozen=True)
class Profiles:
    """Both profiles."""

    sealed: Profile
    loopback: Profile

    @classmethod
    def of(cls, text: str) -> Profiles:
        """Return both profiles, made of the Docker engine's profile, a JSON text."""
        return cls(Profile("sealed", sealed(text)), Profile("loopback", text))


def sealed(text: str) -> str:
    """Return a profile that allows only AF_UNIX sockets."""
    profile = json.loads(text)
    kept = [rule for rule in profile["syscalls"] if not _opens_socket(rule)]
    return json.dumps({**profile, "syscalls": [*kept, _REFUSAL]}, indent=1) + "\n"


def _opens_socket(rule: dict[str, Any]) -> bool:
    return bool(rule["names"] == ["socket"] and rule["args"][0]["value"] != AF_UNIX)


# Pods and their image, without a cluster and without its client package, which is slow to import.


def pod_maker(options: KubernetesOptions, namespace: str) -> PodMaker:
    """Return the builder of pods; `namespace` is used if the options name none."""
    options = replace(options, namespace=options.namespace or namespace)
    return PodMaker(options, Profiles.of(shipped("docker/seccomp.json").read_text()))


def reference(repository: str, recipe: RecipeLike = ()) -> str:
    """Return the reference of the image for nodes to pull. Its tag is always the fingerprint of its contents."""
    return f"{repository}:{tag_for(recipe).partition(':')[2]}"
