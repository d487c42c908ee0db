"""Load the cluster of the kubeconfig, or of this process's pod, with the official client package.

That package supports tokens that expire, plug-ins and inline certificates. Only this module imports it, which takes a
second or two, so this module is imported only when a cluster is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from kubernetes.client import Configuration

from agent_tools.engines.kubernetes.cluster import Cluster
from agent_tools.errors import EngineUnavailable
from agent_tools.text import one_line, shorten

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE = "default"
DEFAULT_KUBECONFIG = "~/.kube/config"
HINT = (
    "Set KUBECONFIG or make ~/.kube/config, name a context (kubernetes://CONTEXT/NAMESPACE), or run in a pod with a "
    "service account."
)


def load_cluster(context: str, kubeconfig: str = "") -> Cluster:
    """Return the cluster of a context; for '' the current one, or, without a kubeconfig, that of this process's pod.

    Raises:
        EngineUnavailable: there is none, or its credentials cannot be read; the message says what to do.
    """
    try:
        return _cluster_of(context, kubeconfig)
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as exc:
        raise EngineUnavailable(f"No Kubernetes cluster is known: {_told(exc)}. {HINT}") from exc


def _cluster_of(context: str, kubeconfig: str) -> Cluster:
    found = Configuration()
    if not context and not kubeconfig and OWN_NAMESPACE.exists():
        config.load_incluster_config(client_configuration=found)
        namespace = OWN_NAMESPACE.read_text().strip()
    else:
        file = kubeconfig or DEFAULT_KUBECONFIG
        # No persist_config: a renewed token is not written into the user's file.
        config.load_kube_config(file, context or None, found, persist_config=False)
        namespace = _namespace_of(context, file)
    if not str(found.host).startswith(("https://", "http://")):
        raise ValueError(f"the server {found.host!r:.80} is not a URL")
    return Cluster(
        server=str(found.host).rstrip("/"),
        namespace=namespace or DEFAULT_NAMESPACE,
        authorities=found.ssl_ca_cert or None,
        is_verified=bool(found.verify_ssl),
        certificate=(found.cert_file, found.key_file) if found.cert_file and found.key_file else None,
        server_name=found.tls_server_name or None,
        authorization=lambda: _authorization(found),
    )


def _namespace_of(context: str, file: str) -> str:
    contexts, current = config.list_kube_config_contexts(file)
    named: dict[str, Any] = next((each for each in contexts if each["name"] == context), current)
    return str((named.get("context") or {}).get("namespace") or "")


def _authorization(found: Configuration) -> str:
    """Return the header's value, after renewing an expired token.

    Raises:
        EngineUnavailable: it cannot be renewed.
    """
    try:
        bearer: dict[str, Any] = dict(found.auth_settings().get("BearerToken") or {})
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as exc:
        raise EngineUnavailable(f"The credentials for Kubernetes cannot be renewed: {_told(exc)}.") from exc
    return str(bearer.get("value") or "")


def _told(exc: Exception) -> str:
    """Return the reason without parts of the file, which some exceptions show with secrets in it."""
    if isinstance(exc, OSError):
        return one_line(f"{exc.strerror}: {exc.filename}")
    if isinstance(exc, config.ConfigException):
        return one_line(shorten(str(exc).partition(" in ")[0].rstrip("."), 300))
    return f"the kubeconfig cannot be read ({type(exc).__name__})"
