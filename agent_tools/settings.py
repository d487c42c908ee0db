"""Every limit with its default and unit, and the only place that reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True)
class Limits:
    """Bounds on one session, all enforced on the host. Times are seconds, sizes bytes."""

    timeout: float = 30.0
    """Seconds that one call's code may run."""
    max_timeout: float = 86_400.0
    """The longest time limit a caller may ask for."""
    interrupt_grace: float = 0.2
    """From the time limit, which the guest enforces first, to the host's interrupt (SIGINT)."""
    kill_grace: float = 0.5
    """From the host's interrupt to the end of the kernel (SIGKILL)."""
    cancel_grace: float = 0.5
    """Likewise where the caller cancelled the code before its time limit."""
    start_timeout: float = 60.0
    """Seconds until a sandbox and its kernel must be ready."""
    restart_timeout: float = 2.0
    """Seconds until a fresh kernel in a running sandbox must be ready; after that the sandbox is replaced."""
    max_pool: int = 32
    """Sandboxes of one kind that may be kept ready (`pool`)."""
    pool_max_age: float = 3_600.0
    """The age at which a sandbox made ahead is replaced; after as long without a session, its pool keeps none ready."""
    pool_retry: float = 60.0
    """Seconds after which a pool that failed to make a sandbox tries again."""
    max_code_bytes: int = MIB
    """The longest code, as UTF-8."""
    max_message_bytes: int = 16 * MIB
    """The largest message taken from the kernel; a larger one ends the kernel."""
    max_text_chars: int = 40_000
    """Characters of printed text kept in one call: the first and the last half."""
    max_error_chars: int = 10_000
    """Characters of a traceback kept: the first and the last half."""
    max_images: int = 20
    """Pictures kept in one call."""
    max_image_bytes: int = 10 * MIB
    """Bytes of one picture."""
    max_image_pixels: int = 25_000_000
    """Width times height of one picture."""
    max_rich_chars: int = MIB
    """Characters of one HTML, SVG, LaTeX, Markdown or JSON representation."""
    max_displays: int = 200
    """Displays and results kept in one call."""
    max_updates: int = 2_000
    """Updates of displays passed on in one call."""
    max_call_bytes: int = 64 * MIB
    """Bytes kept from one call over all outputs; what comes after is read and dropped."""
    command_timeout: float = 60.0
    """Seconds that a command may run, unless the call says otherwise."""
    command_grace: float = 2.0
    """From the time limit of a command, at which it gets SIGTERM, to its end (SIGKILL)."""
    max_commands: int = 128
    """Commands that run at the same time in one sandbox; more wait for their turn."""
    max_command_output: int = 10 * MIB
    """Bytes kept of each stream of a command: the last ones."""
    max_branches: int = 32
    """Forks of one sandbox, and forks of these, that are open at the same time; more are refused."""
    max_transfer_bytes: int = 100 * MIB
    """The largest file that is read from or written to a sandbox in one call."""
    max_archive_bytes: int = GIB
    """The largest tar of work_dir that is saved in one call."""
    max_variables_bytes: int = GIB
    """Bytes of all variables that are saved with them; those that have no room left are named, and left out."""
    max_variables: int = 10_000
    """Variables saved at once, and those named that are not."""
    variables_timeout: float = 30.0
    """Seconds that pickling all variables may take, and making them again; each may take half of what is left."""
    max_listed_files: int = 10_000
    """Entries of one folder of the sandbox listed in one call."""
    max_file_bytes: int = GIB
    """The largest file staged into work_dir."""
    max_files: int = 100
    """Files staged in one call."""
    download_timeout: float = 60.0
    """Seconds that fetching one URL may take, redirects included."""
    max_redirects: int = 5
    """Redirects followed for one URL."""
    max_work_dir_bytes: int = 4 * GIB
    """Bytes that work_dir may come to hold; code that goes beyond is killed. A folder that holds more may not grow."""
    max_work_dir_entries: int = 100_000
    """Files and folders that work_dir may come to hold, likewise."""
    sync_timeout: float = 60.0
    """Seconds for copying work_dir to or from a remote engine's sandbox, before and after a run."""
    min_disk_free: int = GIB
    """Bytes that must stay free on work_dir's file system; code that leaves less is killed."""
    max_listed_entries: int = 10_000
    """Entries of work_dir looked at to find new and changed files."""


@dataclass(frozen=True)
class CallLimits:
    """Bounds on the calls of host functions, all enforced on the host. Times are seconds, sizes bytes."""

    max_calls: int = 100
    """Calls of one run."""
    max_concurrent: int = 32
    """Calls that run at the same time; more wait for their turn."""
    max_pending: int = 1_024
    """Calls that may wait; more are refused."""
    call_timeout: float = 30.0
    """Seconds that one call may take, without the wait for its turn and its approval."""
    max_host_seconds: float = 300.0
    """Seconds that all calls of one run may take together."""
    approval_timeout: float = 600.0
    """Seconds that an approval may take. The run's own time limit stands still meanwhile."""
    max_message_bytes: int = 16 * MIB
    """The largest arguments, and the largest result. Arguments have at most 200,000 parts; an array counts as one."""
    max_open_bytes: int = 64 * MIB
    """Bytes of the messages of unfinished calls; the code waits with further ones."""
    max_argument_bytes: int = 256 * MIB
    """Bytes that the decoded arguments of all running calls may take; large ones wait for their turn."""
    max_refusals: int = 10_000
    """Refused calls of one run, a long one counted for each 64 KiB; after these nothing is read until the next run."""
    max_preview_chars: int = 200
    """Characters of a call's arguments kept in the audit."""
    allow_outside_run: bool = False
    """Let code call that still runs in the background after a run."""
    tell_errors: bool = True
    """Tell the code the type and the message of a host function's exception; its traceback is never told."""


@dataclass(frozen=True)
class EgressLimits:
    """Bounds on a network by list, all enforced on the host. Times are seconds, sizes bytes."""

    max_connections: int = 32
    """Connections of one sandbox at the same time; more are refused."""
    max_opened: int = 10_000
    """Connections that one run may open, refused ones counted; more are hung up on."""
    max_recorded: int = 1_000
    """Connections recorded one by one in an execution; what is more is only counted."""
    max_head: int = 16 * KIB
    """The longest head of a request, and the longest TLS greeting."""
    head_timeout: float = 15.0
    """Seconds until a request's head, and the TLS greeting, must be there."""
    connect_timeout: float = 15.0
    """Seconds for a name's address and the connection to it."""
    idle_timeout: float = 120.0
    """Seconds without a byte in either direction."""
    max_seconds: float = 1_800.0
    """Seconds that one connection may last."""
    max_received: int = GIB
    """Bytes that one connection may bring in."""
    max_sent: int = 256 * MIB
    """Bytes that one connection may send out."""
    max_packages_cache: int = 4 * GIB
    """Bytes of the files in `packages_cache`; those that were not used for longest make room."""


MAX_ROUNDS = 20
"""Requests to a model in one run while it may call tools; one more follows, without them."""

DASHSCOPE_URL = "https://dashscope.aliyuncs.com/compatible-mode/v1"
OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True)
class Endpoint:
    """The server of a language model, and its key."""

    base_url: str
    api_key: str = field(repr=False)


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
    """Return the server of a model that was named without one; None if the environment names no server.

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
    """Return the folder of all tools: DEFAULT_WORKSPACE, QWEN_AGENT_DEFAULT_WORKSPACE, or 'workspace'."""
    return Path(environ.get("DEFAULT_WORKSPACE") or environ.get("QWEN_AGENT_DEFAULT_WORKSPACE") or "workspace")


def code_interpreter_work_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return M6_CODE_INTERPRETER_WORK_DIR, else `<default workspace>/tools/code_interpreter`."""
    return Path(environ.get("M6_CODE_INTERPRETER_WORK_DIR") or default_workspace(environ) / "tools/code_interpreter")


def static_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return M6_CODE_INTERPRETER_STATIC_URL, the base URL of a server that serves work_dir."""
    return environ.get("M6_CODE_INTERPRETER_STATIC_URL") or None


def base_image(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return AGENT_TOOLS_BASE_IMAGE, the image to build on instead of the default."""
    return environ.get("AGENT_TOOLS_BASE_IMAGE") or None


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the first of PIP_CERT, SSL_CERT_FILE, REQUESTS_CA_BUNDLE that names a file."""
    named = [Path(environ[name]) for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if environ.get(name)]
    return next((path for path in named if path.is_file()), None)


def next_hop(host: str, port: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of the proxy through which this machine reaches a host; None if it does so itself.

    It is HTTPS_PROXY, for port 80 HTTP_PROXY, else ALL_PROXY, in small letters first; NO_PROXY lists names with all
    below them, with or without a port, or '*'.
    """

    def given(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name) or ""

    for entry in given("NO_PROXY").replace(",", " ").lower().split():
        name = entry.removesuffix(f":{port}").removeprefix("*").lstrip(".")
        if entry == "*" or host == name or (name and host.endswith(f".{name}")):
            return None
    return given("HTTP_PROXY" if port == 80 else "HTTPS_PROXY") or given("ALL_PROXY") or None


def engine(environ: Mapping[str, str] = os.environ) -> str:
    """Return AGENT_TOOLS_ENGINE, the engine of whoever names none: 'docker' by default."""
    return environ.get("AGENT_TOOLS_ENGINE") or "docker"


def kubernetes_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AGENT_TOOLS_KUBERNETES_<NAME> variables: `namespace`, `image`, ...; and KUBECONFIG."""
    return {"kubeconfig": environ.get("KUBECONFIG", ""), **_options("AGENT_TOOLS_KUBERNETES_", environ)}


def package_index(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return PIP_INDEX_URL and PIP_EXTRA_INDEX_URL, which are passed on to the image's build."""
    return {name: environ[name] for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") if environ.get(name)}


def runtime_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of run directories: `agent_tools-<uid>` in AGENT_TOOLS_RUN_DIR, XDG_RUNTIME_DIR or /tmp."""
    base = environ.get("AGENT_TOOLS_RUN_DIR") or environ.get("XDG_RUNTIME_DIR") or "/tmp"
    return Path(base) / f"agent_tools-{os.getuid()}"


def builds_dir() -> Path:
    """Return the folder of the locks of image builds: one for this user and machine, since they share an engine."""
    return Path(f"/tmp/agent_tools-builds-{os.getuid()}")


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the command line's history: `agent_tools` below XDG_STATE_HOME or ~/.local/state."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "agent_tools"


def gateway_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AGENT_TOOLS_GATEWAY_<NAME> variables by lower-case name: `upstream`, `api_keys`, `port`, ..."""
    return _options("AGENT_TOOLS_GATEWAY_", environ)


def notify_socket(environ: Mapping[str, str] = os.environ) -> str:
    """Return NOTIFY_SOCKET, where systemd waits for a word of a service of `Type=notify`; '' if nobody does."""
    return environ.get("NOTIFY_SOCKET", "")


def mcp_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AGENT_TOOLS_MCP_<NAME> variables likewise: `api_keys`, `memory`, `answer_within`, ..."""
    return _options("AGENT_TOOLS_MCP_", environ)


def _options(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    return {name[len(prefix) :].lower(): value for name, value in environ.items() if name.startswith(prefix) and value}


def jupyter_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return AGENT_TOOLS_JUPYTER_TOKEN, what requests to `agent-tools jupyter serve` must carry."""
    return environ.get("AGENT_TOOLS_JUPYTER_TOKEN") or None


def is_tracing_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names a receiver of spans."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(environ.get(name) for name in names) and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
