"""One cluster and the client's credentials, of the kubeconfig or of this process's pod, by the package `lightkube`.

Only this module imports that package, which takes a quarter of a second, so this module is imported only when a
cluster is needed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError
from msgspec import MsgspecError

from agent_tools.engines.kubernetes.answers import table, tables
from agent_tools.errors import EngineUnavailable
from agent_tools.text import one_line, shorten

OWN_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_KUBECONFIG = "~/.kube/config"
PLUGIN_API = "client.authentication.k8s.io/v1beta1"  # the answers of v1 are the same, but lightkube does not know v1
HINT = (
    "Set KUBECONFIG or make ~/.kube/config, name a context (kubernetes://CONTEXT/NAMESPACE), or run in a pod with a "
    "service account."
)


class Cluster(NamedTuple):
    """A cluster: its API server, namespace and credentials, and the name in the server's certificate, if another."""

    config: SingleConfig
    server_name: str = ""

    def client(self) -> httpx2.Client:
        """Return a new HTTP client with the credentials, for any number of connections."""
        # No environment: no ~/.netrc, no proxy: the cluster's credentials go to the cluster.
        params = ConnectionParams(trust_env=False).httpx_params(self.config)
        return httpx2.Client(**params, limits=httpx2.Limits(max_connections=None))


def load_cluster(context: str, kubeconfig: str = "") -> Cluster:
    """Return the cluster of a context; '' is the current one, or, without a kubeconfig, the pod's own.

    Raises:
        EngineUnavailable: there is none, or its credentials cannot be read; the message says what to do.
    """
    try:
        cluster = _own() if not context and not kubeconfig and OWN_ACCOUNT.exists() else _named(context, kubeconfig)
        if not cluster.config.cluster.server.startswith(("https://", "http://")):
            raise ConfigError(f"the server {cluster.config.cluster.server!r:.80} is not a URL")
    except (ConfigError, MsgspecError, OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as exc:
        raise EngineUnavailable(f"No Kubernetes cluster is known: {_told(exc)}. {HINT}") from exc
    return cluster


def _own() -> Cluster:
    config = KubeConfig.from_service_account(OWN_ACCOUNT).get()
    assert config
    return Cluster(config)


def _named(context: str, kubeconfig: str) -> Cluster:
    files = kubeconfig or DEFAULT_KUBECONFIG
    paths = [Path(each).expanduser() for each in files.split(os.pathsep) if each]
    for path in [each for each in paths if each.exists()] or paths:  # kubectl ignores missing ones, too
        content = table(yaml.safe_load(path.read_text()))
        found = KubeConfig.from_dict(content, path)
        context = context or found.current_context or ""
        if context in found.contexts and (config := found.get(context)):
            user = config.user or User()
            if user.exec:
                user.exec.apiVersion = PLUGIN_API
            named = {each["name"]: table(each.get("cluster")) for each in tables(content["clusters"])}
            return Cluster(config._replace(user=user), named[config.context.cluster].get("tls-server-name", ""))
    raise ConfigError(f"there is no context {context!r:.200} in {files:.200}")


def _told(exc: Exception) -> str:
    """Return the reason without parts of the file, which some exceptions show with secrets in it."""
    if isinstance(exc, OSError):
        return one_line(f"{exc.strerror}: {exc.filename}")
    if isinstance(exc, ConfigError):
        return one_line(shorten(str(exc), 300))
    return f"the kubeconfig cannot be read ({type(exc).__name__})"
