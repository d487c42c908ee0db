"""The settings of the Kubernetes engine: AGENT_TOOLS_KUBERNETES_<NAME>, and the address in the engine's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB, size_of

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
