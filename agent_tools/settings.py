"""Settings from environment variables: the only module that reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_ROUNDS = 20
"""Requests to a model in one run while it may call tools; one more follows, without them."""

DASHSCOPE_URL = "https://dashscope.aliyuncs.com/compatible-mode/v1"
OPENAI_URL = "https://api.openai.com/v1"


MIN_SECRET_CHARS = 6  # shorter keys, such as "none" and "EMPTY", are no secrets


@dataclass(frozen=True)
class Endpoint:
    """The server of a language model, and its key."""

    base_url: str
    api_key: str = field(repr=False)

    def without_key(self, text: str) -> str:
        """Remove the key from a text of the server: some servers repeat it in their errors."""
        return text.replace(self.api_key, "***") if len(self.api_key) >= MIN_SECRET_CHARS else text


def max_rounds(environ: Mapping[str, str] = os.environ) -> int:
    """Return QWEN_AGENT_MAX_LLM_CALL_PER_RUN if it is a positive number, else MAX_ROUNDS."""
    given = environ.get("QWEN_AGENT_MAX_LLM_CALL_PER_RUN", "")
    return int(given) if given.isdecimal() and int(given) > 0 else MAX_ROUNDS


def model_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return AGENT_TOOLS_MODEL, the model of the command line and the examples."""
    return environ.get("AGENT_TOOLS_MODEL") or None


def api_key(variable: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key in a variable that the user named."""
    return environ.get(variable) or None


def openai_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return OPENAI_API_KEY."""
    return environ.get("OPENAI_API_KEY") or None


def dashscope_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return DASHSCOPE_API_KEY."""
    return environ.get("DASHSCOPE_API_KEY") or None


def model_endpoint(model: str, environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return the server for a model that was configured without one; None if the environment names no server.

    It is OPENAI_BASE_URL (with OPENAI_API_KEY, if its server wants one); else DashScope if DASHSCOPE_API_KEY is set,
    for models named qwen or if no other key is set; else OpenAI with OPENAI_API_KEY.
    """
    key, dashscope = openai_key(environ), dashscope_key(environ)
    if environ.get("OPENAI_BASE_URL"):
        return Endpoint(environ["OPENAI_BASE_URL"], key or "EMPTY")
    if dashscope and ("qwen" in model.lower() or not key):
        return Endpoint(DASHSCOPE_URL, dashscope)
    return Endpoint(OPENAI_URL, key) if key else None


def default_workspace(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the parent of the tools' folders: DEFAULT_WORKSPACE, QWEN_AGENT_DEFAULT_WORKSPACE, or 'workspace'."""
    return Path(environ.get("DEFAULT_WORKSPACE") or environ.get("QWEN_AGENT_DEFAULT_WORKSPACE") or "workspace")


def code_interpreter_work_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return M6_CODE_INTERPRETER_WORK_DIR, else `<default workspace>/tools/code_interpreter`."""
    return Path(environ.get("M6_CODE_INTERPRETER_WORK_DIR") or default_workspace(environ) / "tools/code_interpreter")


def is_work_dir_named(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether M6_CODE_INTERPRETER_WORK_DIR names the folder that instances share."""
    return bool(environ.get("M6_CODE_INTERPRETER_WORK_DIR"))


def static_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return M6_CODE_INTERPRETER_STATIC_URL, the base URL of a server that serves work_dir."""
    return environ.get("M6_CODE_INTERPRETER_STATIC_URL") or None


def base_image(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return AGENT_TOOLS_BASE_IMAGE, the image to build on instead of the default."""
    return environ.get("AGENT_TOOLS_BASE_IMAGE") or None


def image_repository(environ: Mapping[str, str] = os.environ) -> str:
    """Return AGENT_TOOLS_IMAGE_REPOSITORY, to pull images from; 'none' turns pulling off, '' means the release's."""
    return environ.get("AGENT_TOOLS_IMAGE_REPOSITORY", "")


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the first of PIP_CERT, SSL_CERT_FILE, REQUESTS_CA_BUNDLE that names a file."""
    named = [Path(environ[name]) for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if environ.get(name)]
    return next((path for path in named if path.is_file()), None)


def next_hop(host: str, port: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of the proxy through which this machine reaches a host; None for a direct connection.

    It is HTTPS_PROXY, for port 80 HTTP_PROXY, else ALL_PROXY; the lower-case names come first. NO_PROXY lists names,
    each with or without a port and with all its subdomains, or is '*'.
    """

    def given(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name) or ""

    for entry in given("NO_PROXY").replace(",", " ").lower().split():
        name = entry.removesuffix(f":{port}").removeprefix("*").lstrip(".")
        if entry == "*" or host == name or (name and host.endswith(f".{name}")):
            return None
    return given("HTTP_PROXY" if port == 80 else "HTTPS_PROXY") or given("ALL_PROXY") or None


def engine(environ: Mapping[str, str] = os.environ) -> str:
    """Return AGENT_TOOLS_ENGINE, the engine to use if the caller names none: 'docker' by default."""
    return environ.get("AGENT_TOOLS_ENGINE") or "docker"


def kubernetes_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AGENT_TOOLS_KUBERNETES_<NAME> variables: `namespace`, `image`, ...; and KUBECONFIG."""
    return {"kubeconfig": environ.get("KUBECONFIG", ""), **_options("AGENT_TOOLS_KUBERNETES_", environ)}


def package_index(environ: Mapping[str, str] = os.environ) -> str:
    """Return PIP_INDEX_URL, the package index of this machine; '' for PyPI."""
    return environ.get("PIP_INDEX_URL", "")


def build_arguments(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the arguments of image builds that describe this machine: package indexes, mirror and proxies.

    Each proxy is passed under both of its names: apt reads only the lower-case one, other programs only the upper-case
    one.
    """
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "DEBIAN_MIRROR", "NPM_CONFIG_REGISTRY")
    found = {name: environ[name] for name in names if environ.get(name)}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        if value := environ.get(name.lower()) or environ.get(name):
            found |= {name: value, name.lower(): value}
    return found


def all_variables() -> dict[str, str]:
    """Return a copy of the environment, for a library that reads it itself."""
    return dict(os.environ)


def runtime_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of run directories: `agent_tools-<uid>` in AGENT_TOOLS_RUN_DIR, XDG_RUNTIME_DIR or /tmp.

    After su or sudo, XDG_RUNTIME_DIR may still be another user's folder: it is ignored unless this user owns it.
    """
    own = environ.get("XDG_RUNTIME_DIR", "")
    base = environ.get("AGENT_TOOLS_RUN_DIR") or (own if _belongs_to_this_user(own) else "/tmp")
    return Path(base) / f"agent_tools-{os.getuid()}"


def _belongs_to_this_user(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid == os.getuid()
    except OSError:
        return False


def builds_dir() -> Path:
    """Return the folder for the locks of image builds: one per user and machine, since they share an engine."""
    return Path(f"/tmp/agent_tools-builds-{os.getuid()}")


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for the command line's history: `agent_tools` below XDG_STATE_HOME or ~/.local/state."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "agent_tools"


def gateway_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AGENT_TOOLS_GATEWAY_<NAME> variables by lower-case name: `upstream`, `api_keys`, `port`, ..."""
    return _options("AGENT_TOOLS_GATEWAY_", environ)


def notify_socket(environ: Mapping[str, str] = os.environ) -> str:
    """Return NOTIFY_SOCKET, where systemd waits for the start of a `Type=notify` service; '' without systemd."""
    return environ.get("NOTIFY_SOCKET", "")


def mcp_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AGENT_TOOLS_MCP_<NAME> variables likewise: `api_keys`, `memory`, `answer_within`, ..."""
    return _options("AGENT_TOOLS_MCP_", environ)


def _options(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    return {name[len(prefix) :].lower(): value for name, value in environ.items() if name.startswith(prefix) and value}


def jupyter_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return AGENT_TOOLS_JUPYTER_TOKEN, the token that requests to `agent-tools jupyter serve` must have."""
    return environ.get("AGENT_TOOLS_JUPYTER_TOKEN") or None


def is_tracing_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names a receiver of spans."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(environ.get(name) for name in names) and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
