"""What a gateway is told at its start: where its upstream is, who may use it, and every limit with its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agent_tools import settings
from agent_tools.errors import InvalidParams
from agent_tools.models.bounds import MAX_REPLY_BYTES
from agent_tools.settings import GIB, KIB, MIB

MEMORY_TIERS = {"1g": GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SECRET = ("upstream_key", "api_keys", "database")


@dataclass(frozen=True)
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
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Who may use the gateway. Each key owns its responses, containers and files, and sees no other's."""
    data_dir: Path = field(default_factory=lambda: settings.default_workspace() / "gateway")
    """Where containers' files, uploads and the SQLite database are kept."""
    database: str = field(default="", repr=False)
    """An SQLAlchemy URL; '' for SQLite in `data_dir`."""
    tool_name: str = "python"
    """What the code interpreter is called towards the model."""
    router_tools: tuple[str, ...] = ("execute_python",)
    """Functions that chat completions may declare and that are run here."""
    packages: tuple[str, ...] = ()
    """Further packages for the image."""
    runtime: str | None = None
    """An OCI runtime of the engine, e.g. runsc."""
    timeout: float = 60.0
    """How long one call's code may run."""
    turn_timeout: float = 3_600.0
    """How long one response may take."""
    max_rounds: int = 25
    """How often the model is asked in one response while it may call tools."""
    max_sandboxes: int = 8
    """Sandboxes that run at once; also how many responses with code do."""
    max_queue: int = 64
    """Requests that wait for a sandbox; one more is answered 429."""
    queue_timeout: float = 60.0
    """How long such a request waits; then it is answered 503."""
    max_responses: int = 64
    """Responses and routed chat completions under way at once, background ones included; one more is answered 429."""
    key_share: float = 0.75
    """How much of `max_sandboxes` and of `max_responses` one key may have at once, where there are several keys."""
    memory: Literal["1g", "4g", "16g", "64g"] = "1g"
    """Memory of a container that asks for no other."""
    max_memory: Literal["1g", "4g", "16g", "64g"] = "4g"
    """The most a container may ask for."""
    container_idle: float = 1_200.0
    """A container unused for so long expires: its files and variables are deleted."""
    max_containers: int = 1_000
    """Containers that live at once, for each key."""
    max_containers_bytes: int = 32 * GIB
    """How much the files of all its containers may come to, for each key."""
    max_uploads: int = 1_000
    """Uploaded files kept, for each key."""
    max_uploads_bytes: int = 16 * GIB
    """How much they may come to, for each key."""
    max_upload_bytes: int = 512 * MIB
    """The largest file that may be uploaded."""
    max_container_bytes: int = 4 * GIB
    """How much the files of one container may come to."""
    max_body_bytes: int = 32 * MIB
    """The largest request that is not an upload."""
    max_body_parts: int = 500_000
    """Commas and opening brackets in one, of which a model's context holds fewer; each costs up to a hundred bytes."""
    json_threads: int = 2
    """Requests and kept responses of more than 256 KiB that are read or written at once."""
    head_timeout: float = 10.0
    """How long a request's head may take to come, on a new connection or from its first byte on; then 408."""
    body_timeout: float = 30.0
    """How long a request's body may keep the gateway waiting, in all; then it is answered 408."""
    min_body_rate: int = 4 * KIB
    """Bytes of a body for which it may keep the gateway waiting one second more."""
    max_connections: int = 512
    """Connections of clients at once. One more takes the place of one that has asked for nothing yet, or is refused."""
    max_response_bytes: int = 64 * MIB
    """Bytes of all events of one response; beyond it the response fails."""
    max_reply_bytes: int = MAX_REPLY_BYTES
    """Bytes taken of one answer of the upstream in a turn, as they arrive; beyond it the response fails."""
    max_stored_responses: int = 100_000
    """Responses kept, for each key."""
    max_stored_bytes: int = 8 * GIB
    """How much they may come to with their inputs, conversations and events, for each key."""
    min_disk_free: int = GIB
    """Bytes left free on the disk of `data_dir`: where there are fewer, nothing more is kept, and code is stopped."""
    retention: float = 30 * 86_400.0
    """How long responses, uploaded files, and the metadata of expired containers are kept."""
    heartbeat: float = 15.0
    """After so long without an event, a stream sends a comment, so that no proxy gives up on it."""
    shutdown_grace: float = 5.0
    """How long responses under way have to end by themselves when the gateway stops; then they fail, and say why."""
    image_urls: Literal["data", "content"] = "data"
    """Whether image outputs hold the picture itself, or the URL of its content in the container."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.upstream)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidParams(f"upstream={self.upstream!r:.80} is no URL: give one such as http://localhost:8000/v1.")
        if "@" in parts.netloc:
            raise InvalidParams("upstream holds credentials, which would be shown; give its key as upstream_key.")
        if not self.api_keys and self.host not in LOOPBACK:
            raise InvalidParams(f"Without a key, anyone who reaches {self.host} could run code: give --api-key.")
        if not 0 < self.key_share <= 1:
            raise InvalidParams(f"key_share={self.key_share} is not between 0 and 1.")
        if any(len(key) < 8 for key in self.api_keys):
            raise InvalidParams("An API key has fewer than 8 characters.")
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value < (name == "port" and -1):
                raise InvalidParams(f"{name}={value} is negative.")

    @property
    def database_url(self) -> str:
        """Where the store is."""
        return self.database or f"sqlite:///{self.data_dir.absolute() / 'gateway.db'}"

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Every setting by name, secrets masked."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            yield each.name, "(set)" if each.name in _SECRET and value else value


def read_config(given: Mapping[str, Any]) -> GatewayConfig:
    """A configuration from values or their text, by name; None means that nothing is given.

    Raises:
        InvalidParams: a name is unknown, or a value cannot be used.
    """
    kinds = {each.name: str(each.type) for each in dataclasses.fields(GatewayConfig)}
    if unknown := sorted(set(given) - set(kinds)):
        raise InvalidParams(f"There is no setting {unknown[0]!r}. Known: {', '.join(kinds)}.")
    if not given.get("upstream"):
        raise InvalidParams("Nothing says where the models are: give --upstream, e.g. http://localhost:8000/v1.")
    return GatewayConfig(
        **{name: _read(name, kinds[name], value) for name, value in given.items() if value is not None}
    )


def _read(name: str, kind: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if kind in ("int", "float"):
            return int(value) if kind == "int" else float(value)
    except ValueError as exc:
        raise InvalidParams(f"{name}={value!r:.40} is not a number.") from exc
    if kind == "Path":
        return Path(value)
    if kind.startswith("Literal") and repr(value) not in kind.replace('"', "'"):
        raise InvalidParams(f"{name}={value!r:.40} is not one of {kind[8:-1]}.")
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value
