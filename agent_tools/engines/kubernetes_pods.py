"""The pods that sandboxes are, and the image in them: told without a cluster, and without its client, which is slow."""

from __future__ import annotations

from dataclasses import replace

from agent_tools.engines.docker.context import shipped, tag_for
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.engines.kubernetes.pod import PodMaker
from agent_tools.engines.kubernetes.seccomp import Profiles
from agent_tools.engines.recipe import RecipeLike


def pod_maker(options: KubernetesOptions, namespace: str) -> PodMaker:
    """Return what makes the pods; `namespace` is for options that name none."""
    options = replace(options, namespace=options.namespace or namespace)
    return PodMaker(options, Profiles.of(shipped("docker/seccomp.json").read_text()))


def reference(repository: str, recipe: RecipeLike = ()) -> str:
    """Return the image for nodes to pull. Its tag is the fingerprint of what it is made of: no other is ever named."""
    return f"{repository}:{tag_for(recipe).partition(':')[2]}"
