"""The two seccomp profiles that the nodes must have, made of the profile for the Docker engine. Pure functions.

`loopback` is that profile word for word. `sealed` allows sockets of AF_UNIX only, so code cannot reach the cluster's
network, whether or not it enforces policies. Their names carry a hash of their content, so a node with an old profile
starts no sandbox of a new release.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

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
