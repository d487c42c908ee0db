"""The settings of a gateway: where its upstream is, who may use it, and every limit with its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from agent_tools import settings
from agent_tools.errors import InvalidParams
from agent_tools.models.bounds import MAX_REPLY_BYTES
from agent_tools.runtime.network import NetworkPolicy
from agent_tools.runtime.recipe import Flavour
from agent_tools.sandbox.options import Options
from agent_tools.settings import GIB, KIB, MIB

MEMORY_TIERS = {"1g": GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MIN_KEY_CHARS = 8
_SECRET = ("upstream_key", "api_keys", "database")


def _split(value: object) -> object:
    """Return the parts of a text between commas; any other value as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Tier = Literal["1g", "4g", "16g", "64g"]
Texts = Annotated[tuple[str, ...], BeforeValidator(_split)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class GatewayConfig:
    """Times are seconds, sizes bytes.

    Raises:
        InvalidParams: a value cannot be used, or would open the gateway to the network without a key.
    """

    upstream: str
    """Base URL of the OpenAI-compatible server that has the models, e.g. http://localhost:8000/v1."""
    upstream_key: str = field(default="", repr=False)
    """The key of the upstream. Without one, and without `api_keys`, a client's own key is passed on."""
    upstream_api: Literal["chat", "responses"] = "chat"
    """The upstream's API for responses and for routed chat completions."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    api_keys: Texts = field(default=(), repr=False)
    """The keys that clients may use. Each owns its responses, containers and files, and sees no other's."""
    data_dir: Path = field(default_factory=lambda: settings.default_workspace() / "gateway")
    """The folder of containers' files, uploads and the SQLite database."""
    database: str = field(default="", repr=False)
    """An SQLAlchemy URL; '' for SQLite in `data_dir`."""
    tool_name: str = "python"
    """The code interpreter's name for the model."""
    shell_name: str = "shell"
    """The shell's name for the model."""
    router_tools: Texts = ("execute_python",)
    """Functions that chat completions may declare and that are run here."""
    packages: Texts = ()
    """Further packages for the image."""
    debian_packages: Texts = ()
    """Further Debian packages for the image."""
    flavour: Flavour = "lean"
    """The image's contents: lean, full, agent or newest."""
    runtime: str | None = None
    """An OCI runtime of the engine, e.g. runsc."""
    pool: Count = 1
    """Sandboxes kept ready for containers with the usual memory and no network; 0 for none."""
    preload: Texts = ("numpy", "pandas", "matplotlib.pyplot")
    """The modules that those have imported already."""
    allowed_domains: Texts = ()
    """Names that a container's network_policy may list: names such as `pypi` or `*.example.org`. By default nothing."""
    private_networks: Texts = ()
    """Blocks of addresses, beside the public internet, in which those names may lie, e.g. 10.1.0.0/16."""
    timeout: Seconds = 60.0
    """The time limit of one call's code, and of a shell command that is given no other."""
    max_shell_timeout: Seconds = 600.0
    """The longest time limit that a model may give a shell command."""
    max_shell_output: Count = 40_000
    """Characters kept of what one shell command prints: the first and the last half."""
    turn_timeout: Seconds = 3_600.0
    """The time limit of one response."""
    max_rounds: Count = 25
    """Requests to the model in one response while it may call tools."""
    max_sandboxes: Count = 8
    """Sandboxes that run at once; also how many responses with code do."""
    max_queue: Count = 64
    """Requests that wait for a sandbox; one more is answered 429."""
    queue_timeout: Seconds = 60.0
    """The longest wait for a sandbox; then the request is answered 503."""
    max_responses: Count = 64
    """Responses and routed chat completions under way at once, background ones included; one more is answered 429."""
    key_share: Annotated[float, Field(gt=0, le=1)] = 0.75
    """The part of `max_sandboxes` and of `max_responses` that one key may have at once, if there are several keys."""
    keep_variables: bool = True
    """Save the variables of a container whose sandbox makes room for another, or whose gateway stops."""
    save_every: Seconds = 0.0
    """Save the variables of containers in use every so many seconds, in case the machine is lost; 0 is never."""
    max_variables_bytes: Count = 512 * MIB
    """Bytes of one container's variables that are saved; they count as its files do."""
    variables_timeout: Seconds = 30.0
    """The time for saving or bringing back one container's variables, beside that for their transport."""
    memory: Tier = "1g"
    """Memory of a container that asks for no other."""
    max_memory: Tier = "4g"
    """The most a container may ask for."""
    container_idle: Seconds = 1_200.0
    """A container unused for so long expires: its files and variables are deleted."""
    max_containers: Count = 1_000
    """Containers that live at once, for each key."""
    max_containers_bytes: Count = 32 * GIB
    """Bytes of the files in all containers of one key."""
    max_uploads: Count = 1_000
    """Uploaded files that are kept, for each key."""
    max_uploads_bytes: Count = 16 * GIB
    """Bytes of all uploaded files of one key."""
    max_upload_bytes: Count = 512 * MIB
    """The largest file that may be uploaded."""
    max_container_bytes: Count = 4 * GIB
    """Bytes of the files in one container."""
    max_body_bytes: Count = 32 * MIB
    """The largest request that is not an upload."""
    max_body_parts: Count = 500_000
    """Commas and opening brackets in a request's JSON. A model's context holds fewer; each costs up to 100 bytes."""
    json_threads: Count = 2
    """Large pieces of JSON (more than 256 KiB) that are read or written at once."""
    head_timeout: Seconds = 10.0
    """The time limit of a request's head, from a connection's start or the head's first byte; then 408."""
    body_timeout: Seconds = 30.0
    """The time that the gateway waits for a request's body, in all; then it answers 408."""
    min_body_rate: Count = 4 * KIB
    """Bytes of a body that buy it one second more."""
    max_connections: Count = 512
    """Clients' connections at once. One more takes the place of one without a request, or is refused."""
    max_response_bytes: Count = 64 * MIB
    """Bytes of all events of one response; a larger response fails."""
    max_reply_bytes: Count = MAX_REPLY_BYTES
    """Bytes of one answer of the upstream in a turn; the response fails as soon as more arrive."""
    max_stored_responses: Count = 100_000
    """Stored responses, for each key."""
    max_stored_bytes: Count = 8 * GIB
    """Bytes of all stored responses of one key, with their inputs, conversations and events."""
    min_disk_free: Count = GIB
    """Bytes left free on the disk of `data_dir`: with fewer, nothing more is kept, and code is stopped."""
    retention: Seconds = 30 * 86_400.0
    """The age at which responses, uploaded files, and the metadata of expired containers are deleted."""
    heartbeat: Seconds = 15.0
    """The silence after which a stream sends a comment, so that no proxy gives up on it."""
    shutdown_grace: Seconds = 5.0
    """The time that active responses have to end when the gateway stops; then they fail, and say why."""
    image_urls: Literal["data", "content"] = "data"
    """Image outputs hold the picture itself (data), or the URL of its content in the container (content)."""

    @model_validator(mode="wrap")
    @classmethod
    def _tell(cls, given: object, build: Callable[[object], GatewayConfig]) -> GatewayConfig:
        try:
            return build(given)
        except ValidationError as exc:
            raise InvalidParams(_sentence(exc.errors()[0])) from None  # pydantic's own text would show secrets

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, upstream: str) -> str:
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidParams(f"upstream={upstream!r:.80} is no URL: give one such as http://localhost:8000/v1.")
        if "@" in parts.netloc:
            raise InvalidParams("upstream holds credentials, which would be shown; give its key as upstream_key.")
        return upstream

    @model_validator(mode="after")
    def _check_network(self) -> GatewayConfig:
        NetworkPolicy.read({"allow": self.allowed_domains, "private": self.private_networks})
        return self

    @model_validator(mode="after")
    def _check_pool(self) -> GatewayConfig:
        Options.read({"pool": self.pool, "preload": list(self.preload) if self.pool else []})
        return self

    @model_validator(mode="after")
    def _check_names_and_keys(self) -> GatewayConfig:
        if not self.api_keys and self.host not in LOOPBACK:
            raise InvalidParams(f"Without a key, anyone who reaches {self.host} could run code: give --api-key.")
        if self.shell_name == self.tool_name:
            raise InvalidParams(f"tool_name and shell_name are both {self.shell_name!r:.40}: give two names.")
        if any(len(key) < MIN_KEY_CHARS for key in self.api_keys):
            raise InvalidParams(f"An API key has fewer than {MIN_KEY_CHARS} characters.")
        return self

    @property
    def database_url(self) -> str:
        """The SQLAlchemy URL of the store."""
        return self.database or f"sqlite:///{self.data_dir.absolute() / 'gateway.db'}"

    @property
    def passes_clients_keys(self) -> bool:
        """Clients' own keys are sent to the upstream."""
        return not self.upstream_key and not self.api_keys

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Yield every setting by name, secrets masked."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            yield each.name, "(set)" if each.name in _SECRET and value else value


def read_config(given: Mapping[str, Any]) -> GatewayConfig:
    """Return a configuration from values or their text, by name; None stands for the default.

    Raises:
        InvalidParams: a name is unknown, or a value cannot be used.
    """
    names = [each.name for each in dataclasses.fields(GatewayConfig)]
    if unknown := sorted(set(given) - set(names)):
        raise InvalidParams(f"There is no setting {unknown[0]!r}. Known: {', '.join(names)}.")
    if not given.get("upstream"):
        raise InvalidParams("No upstream is given: tell where the models are by --upstream http://localhost:8000/v1.")
    return GatewayConfig(**{name: value for name, value in given.items() if value is not None})


def _sentence(error: ErrorDetails) -> str:
    """Say what is wrong with a setting, without the value of a secret one."""
    name, limits = str(error["loc"][0]), error.get("ctx", {})
    setting = name if name in _SECRET else f"{name}={error['input']!r:.40}"
    match error["type"]:
        case "missing" | "missing_argument":
            return f"{name} is missing."
        case "greater_than_equal" if limits["ge"] == 0 and str(error["input"]).lower() != "nan":
            return f"{setting} is negative."
        case "greater_than_equal" | "greater_than" | "less_than_equal":
            return f"{setting} is out of range: it should be {error['msg'].partition('should be ')[2]}."
        case "literal_error":
            return f"{setting} is not one of {limits['expected']}."
        case kind if kind.startswith(("int_", "float_")):
            return f"{setting} is not a number."
        case _:
            return f"{setting} cannot be used: {error['msg']}."
