"""The engine's address, found as by the docker CLI: DOCKER_HOST, else the current context.

Format: https://docs.docker.com/engine/manage-resources/contexts/ (a folder for each, named by a digest of its name)
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from agent_tools import settings
from agent_tools.errors import EngineUnavailable

DEFAULT = "default"  # the context of this machine's engine
_HINT = "`docker context ls` lists the contexts; choose another with `docker context use default`, or set DOCKER_HOST."


def environment() -> dict[str, str]:
    """Return the environment, with DOCKER_HOST and the TLS variables of the current context, if there is one.

    Raises:
        EngineUnavailable: the context does not exist, or has no address of an engine.
    """
    environ = settings.all_variables()
    folder = Path(environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    name = environ.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext") or DEFAULT
    if environ.get("DOCKER_HOST") or name == DEFAULT:
        return environ
    contexts, digest = folder / "contexts", hashlib.sha256(str(name).encode()).hexdigest()
    endpoint = _docker_endpoint(_read(contexts / "meta" / digest / "meta.json"))
    if not endpoint:
        raise EngineUnavailable(f"The docker context {name!r:.80} does not exist, or has no address. {_HINT}")
    environ |= {"DOCKER_HOST": endpoint["Host"], "DOCKER_CERT_PATH": "", "DOCKER_TLS_VERIFY": ""}
    certificates = contexts / "tls" / digest / "docker"
    if certificates.is_dir():
        is_verified = endpoint.get("SkipTLSVerify") is not True
        environ |= {"DOCKER_CERT_PATH": str(certificates), "DOCKER_TLS_VERIFY": "1" if is_verified else ""}
    return environ


def _docker_endpoint(context: dict[str, Any]) -> dict[str, Any]:
    """Return the Docker endpoint of a context; {} if it has no address."""
    endpoints = context.get("Endpoints")
    found = endpoints.get("docker") if isinstance(endpoints, dict) else None
    return found if isinstance(found, dict) and isinstance(found.get("Host"), str) and found["Host"] else {}


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object of a file; an empty one if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
