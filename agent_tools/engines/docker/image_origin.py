"""The origin of an image, in the standard labels: the base it was built on, and the version that built it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.version import __version__

PREFIX = "org.opencontainers.image."
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """The origin of an image.

    Attributes:
        base: the name of the image it was built on.
        digest: the base image's digest in its registry, or its id in the engine.
        version: of agent_tools.
    """

    base: str
    digest: str
    version: str = __version__

    @property
    def arguments(self) -> dict[str, str]:
        """The build arguments, from which the build makes labels."""
        return {"BASE_NAME": self.base, "BASE_DIGEST": self.digest, "VERSION": self.version}


def origin_on(base: str, facts: Mapping[str, Any]) -> Origin:
    """Return the origin of an image built on `base`, which may be pinned (NAME@sha256:...), given its `inspect`."""
    name = base.partition("@")[0]
    return Origin(name, _digest(_repository(name), facts))


def origin_of(facts: Mapping[str, Any]) -> Origin:
    """Read the labels in an image's `inspect`; other images may have none."""
    labels = (facts.get("Config") or {}).get("Labels") or {}
    base, digest, version = (labels.get(PREFIX + name) or UNKNOWN for name in ("base.name", "base.digest", "version"))
    return Origin(base, digest, version)


def _digest(repository: str, facts: Mapping[str, Any]) -> str:
    """Return the digest under this repository's name, else any digest, else the id."""
    known = dict(reference.split("@", 1) for reference in reversed(facts.get("RepoDigests") or ()) if "@" in reference)
    return str(known.get(repository) or next(iter(known.values()), None) or facts["Id"])


def _repository(name: str) -> str:
    """An image's name without its tag; a colon before a slash is a registry's port."""
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name
