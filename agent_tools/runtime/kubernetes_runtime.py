"""The runtime on Kubernetes: the engine `kubernetes`, from its name and the operator's options."""

from __future__ import annotations

from agent_tools import settings
from agent_tools.engines.kubernetes.api import Api
from agent_tools.engines.kubernetes.cluster import load_cluster
from agent_tools.engines.kubernetes.engine import KubernetesEngine
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.engines.kubernetes.pod import pod_maker, reference
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
    """Return the engine for a name `kubernetes[://CONTEXT[/NAMESPACE]]`."""
    options = KubernetesOptions.read(word, settings.kubernetes_options())
    cluster = load_cluster(options.context, options.kubeconfig)
    return KubernetesEngine(Api(cluster, options.timeout), pod_maker(options, cluster.config.namespace))
