"""The runtime on Kubernetes: the engine `kubernetes`, from its word and the operator's options."""

from __future__ import annotations

from dataclasses import replace

from agent_tools import settings
from agent_tools.runtime.docker.context import tag_for
from agent_tools.runtime.docker.shipped import shipped
from agent_tools.runtime.kubernetes.cluster.api import Api
from agent_tools.runtime.kubernetes.engine import KubernetesEngine
from agent_tools.runtime.kubernetes.options import KubernetesOptions
from agent_tools.runtime.kubernetes.pods.pod import PodMaker
from agent_tools.runtime.kubernetes.pods.seccomp import Profiles
from agent_tools.runtime.recipe import RecipeLike
from agent_tools.runtime.runtime import Runtime


def kubernetes_runtime(word: str) -> Runtime:
    """Return a runtime whose sandboxes are pods.

    Raises:
        InvalidParams: an option cannot be used.
        EngineUnavailable: no cluster is known.
    """
    engine = kubernetes_engine(word)
    return Runtime(engine, lambda recipe: reference(engine.maker.options.image, recipe))


def kubernetes_engine(word: str) -> KubernetesEngine:
    """Return the engine of the engine's word, `kubernetes[://CONTEXT[/NAMESPACE]]`."""
    from agent_tools.runtime.kubernetes.cluster.credentials import load_cluster  # which takes a second or two

    options = KubernetesOptions.read(word, settings.kubernetes_options())
    cluster = load_cluster(options.context, options.kubeconfig)
    return KubernetesEngine(Api(cluster, options.timeout), pod_maker(options, cluster.namespace))


def pod_maker(options: KubernetesOptions, namespace: str) -> PodMaker:
    """Return what makes the pods; `namespace` is for options that name none."""
    options = replace(options, namespace=options.namespace or namespace)
    return PodMaker(options, Profiles.of(shipped("docker/seccomp.json").read_text()))


def reference(repository: str, recipe: RecipeLike = ()) -> str:
    """Return the image for nodes to pull. Its tag is the fingerprint of what it is made of: no other is ever named."""
    return f"{repository}:{tag_for(recipe).partition(':')[2]}"
