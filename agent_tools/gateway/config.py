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
    """The key it wants. Without one, and without `api_keys`, a client's own key is passed on."""
    upstream_api: Literal["chat", "responses"] = "chat"
    """Which of its APIs is used for responses and for routed chat completions."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    api_keys: Texts = field(default=(), repr=False)
    """Who may use the gateway. Each key owns its responses, containers and files, and sees no other's."""
    data_dir: Path = field(default_factory=lambda: settings.default_workspace() / "gateway")
    """Where containers' files, uploads and the SQLite database are kept."""
    database: str = field(default="", repr=False)
    """An SQLAlchemy URL; '' for SQLite in `data_dir`."""
    tool_name: str = "python"
    """What the code interpreter is called towards the model."""
    router_tools: Texts = ("execute_python",)
    """Functions that chat completions may declare and that are run here."""
    packages: Texts = ()
    """Further packages for the image."""
    runtime: str | None = None
    """An OCI runtime of the engine, e.g. runsc."""
    timeout: Seconds = 60.0
    """How long one call's code may run."""
    turn_timeout: Seconds = 3_600.0
    """How long one response may take."""
    max_rounds: Count = 25
    """How often the model is asked in one response while it may call tools."""
    max_sandboxes: Count = 8
    """Sandboxes that run at once; also how many responses with code do."""
    max_queue: Count = 64
    """Requests that wait for a sandbox; one more is answered 429."""
    queue_timeout: Seconds = 60.0
    """How long such a request waits; then it is answered 503."""
    max_responses: Count = 64
    """Responses and routed chat completions under way at once, background ones included; one more is answered 429."""
    key_share: Annotated[float, Field(gt=0, le=1)] = 0.75
    """How much of `max_sandboxes` and of `max_responses` one key may have at once, where there are several keys."""
    memory: Tier = "1g"
    """Memory of a container that asks for no other."""
    max_memory: Tier = "4g"
    """The most a container may ask for."""
    container_idle: Seconds = 1_200.0
    """A container unused for so long expires: its files and variables are deleted."""
    max_containers: Count = 1_000
    """Containers that live at once, for each key."""
    max_containers_bytes: Count = 32 * GIB
    """How much the files of all its containers may come to, for each key."""
    max_uploads: Count = 1_000
    """Uploaded files kept, for each key."""
    max_uploads_bytes: Count = 16 * GIB
    """How much they may come to, for each key."""
    max_upload_bytes: Count = 512 * MIB
    """The largest file that may be uploaded."""
    max_container_bytes: Count = 4 * GIB
    """How much the files of one container may come to."""
    max_body_bytes: Count = 32 * MIB
    """The largest request that is not an upload."""
    max_body_parts: Count = 500_000
    """Commas and opening brackets in one, of which a model's context holds fewer; each costs up to a hundred bytes."""
    json_threads: Count = 2
    """Requests and kept responses of more than 256 KiB that are read or written at once."""
    head_timeout: Seconds = 10.0
    """How long a request's head may take to come, on a new connection or from its first byte on; then 408."""
    body_timeout: Seconds = 30.0
    """How long a request's body may keep the gateway waiting, in all; then it is answered 408."""
    min_body_rate: Count = 4 * KIB
    """Bytes of a body for which it may keep the gateway waiting one second more."""
    max_connections: Count = 512
    """Connections of clients at once. One more takes the place of one that has asked for nothing yet, or is refused."""
    max_response_bytes: Count = 64 * MIB
    """Bytes of all events of one response; beyond it the response fails."""
    max_reply_bytes: Count = MAX_REPLY_BYTES
    """Bytes taken of one answer of the upstream in a turn, as they arrive; beyond it the response fails."""
    max_stored_responses: Count = 100_000
    """Responses kept, for each key."""
    max_stored_bytes: Count = 8 * GIB
    """How much they may come to with their inputs, conversations and events, for each key."""
    min_disk_free: Count = GIB
    """Bytes left free on the disk of `data_dir`: where there are fewer, nothing more is kept, and code is stopped."""
    retention: Seconds = 30 * 86_400.0
    """How long responses, uploaded files, and the metadata of expired containers are kept."""
    heartbeat: Seconds = 15.0
    """After so long without an event, a stream sends a comment, so that no proxy gives up on it."""
    shutdown_grace: Seconds = 5.0
    """How long responses under way have to end by themselves when the gateway stops; then they fail, and say why."""
    image_urls: Literal["data", "content"] = "data"
    """Whether image outputs hold the picture itself, or the URL of its content in the container."""

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
    def _check_keys(self) -> GatewayConfig:
        if not self.api_keys and self.host not in LOOPBACK:
            raise InvalidParams(f"Without a key, anyone who reaches {self.host} could run code: give --api-key.")
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
    """Return what is wrong with a setting, without the value of a secret one."""
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
