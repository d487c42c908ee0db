"""The settings of a gateway: where its upstream is, who may use it, and every limit with its default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, field_validator, model_validator
from pydantic.dataclasses import dataclass

from agent_tools.bodies.sign_on import SignOnSettings
from agent_tools.containers.config import ContainersConfig, Count, LogLevel, Port, Seconds, Size, Texts, read_as
from agent_tools.containers.keys import check_keys
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import InvalidParams
from agent_tools.extras import pip_install
from agent_tools.limits import GIB, KIB, MIB
from agent_tools.models.dialect.profile import read_profile
from agent_tools.models.reply_limits import MAX_REPLY_BYTES

ENDPOINTS = (
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
    "completions",
    "detokenize",
    "embeddings",
    "images/edits",
    "images/generations",
    "images/variations",
    "messages",
    "messages/count_tokens",
    "moderations",
    "rerank",
    "score",
    "tokenize",
)
ANTHROPIC = ("messages", "messages/count_tokens")
"""Those of Anthropic's API, which many servers of models have, too: for Claude Code and other clients of it."""
BESIDE_V1 = frozenset(("detokenize", "tokenize"))
"""Those that servers have beside /v1 and not below it: https://docs.vllm.ai/en/latest/serving/openai_compatible_server."""


_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
MAX_PICTURES_SHOWN = 4  # of one round, the first ones
DATABASE = "gateway.db"  # the name of SQLite's file in `data_dir`
PASSED_FIELDS = (
    *("seed", "stop", "logit_bias", "top_k", "min_p", "typical_p", "min_tokens", "ignore_eos", "stop_token_ids"),
    *("repetition_penalty", "length_penalty", "skip_special_tokens", "include_stop_str_in_output", "priority"),
    *("chat_template_kwargs", "mm_processor_kwargs", "cache_salt", "vllm_xargs", "structured_outputs", "guided_json"),
    *("guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "separate_reasoning", "stream_reasoning"),
    *("enable_thinking", "thinking_budget", "thinking", "cache_prompt", "id_slot", "reasoning_budget", "grammar"),
    *("repeat_penalty", "top_a", "top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat", "keep_alive"),
    *("provider", "models", "route", "transforms", "plugins", "web_search_options", "prompt_cache_retention"),
    *("safe_prompt", "random_seed", "prediction"),
)
"""Names of vLLM, SGLang, llama.cpp, Ollama, OpenRouter, DeepSeek, Qwen and Mistral, and those of OpenAI's chat
completions that its responses lack."""
_OURS = frozenset(("model", "messages", "input", "tools", "tool_choice", "stream", "store", "extra_body"))


LogFormat = Literal["text", "json"]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class GatewayConfig(SignOnSettings, ContainersConfig):
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
    upstream_profile: str = "auto"
    """The upstream's dialect of requests: `auto` learns it from its answers; see docs/upstreams.md for others."""
    passed_fields: Texts = PASSED_FIELDS
    """Fields beyond OpenAI's that a response may have and that are sent to the upstream as they are."""
    host: str = "127.0.0.1"
    port: Port = 8080
    metrics_port: Port | None = None
    """A second port, for /metrics, /health and /ready; the first one has no /metrics then."""
    metrics_host: str = "127.0.0.1"
    """Address of the second port. It needs no key, so choose an address that only your own machines reach."""
    root_path: str = ""
    """The path at which a proxy serves the gateway, e.g. /code, whether or not the proxy removes it."""
    api_keys: Texts = field(default=(), repr=False)
    """The keys that clients may use. Each owns its responses, containers and files, and sees no other's."""
    named_keys: bool = False
    """Need a key, and accept those of `agent-tools keys` beside `api_keys`."""
    oidc_groups: str = ""
    """The claim with a user's groups. Then only users of groups named by `agent-tools keys add NAME --group GROUP` are
    let in, with the limits of the first such group; else every user of the provider is."""
    oidc_client_id: str = ""
    """The provider's public client for the page, which offers to sign in with it."""
    max_requests_per_minute: Count = 0
    """Requests in a minute, for each key that has no limit of its own; one more is answered 429. 0 is no limit."""
    database: str = field(default="", repr=False)
    """An SQLAlchemy URL; '' for SQLite in `data_dir`."""
    database_timeout: Seconds = 10.0
    """The time that a write waits for another process's lock on the SQLite file; once one failed, others fail soon.
    With PostgreSQL, the time after which a connection fails whose other machine acknowledges nothing."""
    tool_name: str = "python"
    """The code interpreter's name for the model."""
    shell_name: str = "shell"
    """The shell's name for the model."""
    router_tools: Texts = ()
    """Functions that chat completions may declare and that are run here, such as execute_python; all others are the
    client's to run."""
    vision_models: Texts = ()
    """Models that read pictures, such as `gpt-4o`, `qwen*-vl*` or `*`: they are shown the first four pictures of
    each round."""
    session_headers: Texts = ("x-conversation-id", "x-openwebui-chat-id", "x-opencode-session")
    """Headers of a request that name its conversation, whose container is kept by that; the first one found counts."""
    match_text: bool = True
    """Recognise a conversation without an id by its whole text, so that it keeps its container. Turn it off if one key
    serves separate users.
    """
    unknown_tools: Literal["refuse", "ignore"] = "refuse"
    """Unsupported tools of a request, such as web_search: refuse the request, or ignore the tools."""
    mcp_servers: Texts = ()
    """MCP servers that requests may name as a tool: `mcp.example.com`, `*.example.org`, `mcp.example.com:8443`, or an
    address with its port. None by default; a name's addresses are public ones, but for those in `mcp_private`."""
    mcp_private: Texts = ()
    """Blocks of non-public addresses that those names may have, such as 10.1.0.0/16."""
    mcp_timeout: Seconds = 60.0
    """The time limit of listing a server's tools, and of each call of one."""
    max_mcp_tools: Count = 128
    """The most tools of one server for the model; of a server with more, a request must name the tools it needs."""
    max_mcp_bytes: Size = 16 * MIB
    """Bytes that one server may send in one response."""
    max_shell_timeout: Seconds = 600.0
    """The longest time limit that a model may give a shell command."""
    turn_timeout: Seconds = 3_600.0
    """The time limit of one response."""
    max_rounds: Count = 25
    """Requests to the model in one response while it may call tools."""
    max_queue: Count = 64
    """Requests that wait for a sandbox; one more is answered 429."""
    queue_timeout: Seconds = 60.0
    """The longest wait for a sandbox; then the request is answered 503."""
    max_responses: Count = 64
    """Responses and routed chat completions at once, including background ones; one more is answered 429."""
    max_body_bytes: Size = 32 * MIB
    """The largest request that is not an upload."""
    max_unpacked_bytes: Size = GIB
    """Unpacked bytes of all compressed requests that arrive; a single request may always have its own limit."""
    head_timeout: Seconds = 10.0
    """The time limit of a request's head, from a connection's start or the head's first byte; then 408."""
    body_timeout: Seconds = 30.0
    """The time that the gateway waits for a request's body, in all; then it answers 408."""
    min_body_rate: Count = 4 * KIB
    """Bytes of a body that buy it one second more."""
    max_connections: Count = 512
    """Clients' connections at once. One more takes the place of one that serves no key, or is refused."""
    max_response_bytes: Size = 64 * MIB
    """Bytes of all events of one response; a larger response fails."""
    max_reply_bytes: Size = MAX_REPLY_BYTES
    """Bytes of one answer of the upstream in a turn; the response fails as soon as more arrive."""
    max_stored_responses: Count = 100_000
    """Stored responses, for each key."""
    max_stored_bytes: Size = 8 * GIB
    """Bytes of all stored responses of one key, with their inputs, conversations and events."""
    max_conversations: Count = 10_000
    """Conversations (/v1/conversations), for each key. One that is not used for `retention` seconds is deleted."""
    max_conversation_items: Count = 10_000
    """Items of a conversation; then no response adds to it."""
    max_conversation_bytes: Size = 64 * MIB
    """Bytes of a conversation's items; likewise, and no response continues a larger one. Those of all conversations of
    a key: `max_stored_bytes`."""
    heartbeat: Seconds = 15.0
    """The silence after which a stream sends a comment, so that proxies do not close it."""
    refusal_wait: Seconds = 2.0
    """The time that a response's stream waits for its first item, so that a refusal by the upstream is its status."""
    log_format: LogFormat = "text"
    """The lines of the log, on standard error: text, or JSON for programs that collect logs."""
    log_level: LogLevel = "info"
    """The lowest level that is logged; `warning` leaves out requests, `debug` includes requests of probes."""
    shutdown_grace: Seconds = 5.0
    """The time that active responses have to end when the gateway stops; then they fail, and say why."""
    endpoints: Texts = ENDPOINTS
    """Further stateless endpoints below /v1 that are passed on to the upstream."""
    image_urls: Literal["data", "content"] = "data"
    """Image outputs hold the picture itself (data), or the URL of its content in the container (content)."""

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, upstream: str) -> str:
        parts = urlsplit(upstream)
        if "@" in upstream:
            raise InvalidParams("upstream holds credentials, which would be shown; give its key as upstream_key.")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidParams(f"upstream={upstream!r:.80} is no URL: give one such as http://localhost:8000/v1.")
        return upstream

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        parts = urlsplit(address)
        is_url = parts.scheme in ("http", "https") and parts.netloc and not parts.query and "@" not in parts.netloc
        if address and not is_url:
            raise InvalidParams(
                "address is no gateway's URL: give one such as http://10.0.0.5:8080, without credentials."
            )
        return address

    @field_validator("mcp_servers")
    @classmethod
    def _check_mcp_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        if servers:
            NetworkPolicy.read({"allow": servers})
            if find_spec("mcp") is None:
                raise InvalidParams(f"mcp_servers needs the package mcp: {pip_install('gateway,mcp')}")
        return servers

    @field_validator("mcp_private")
    @classmethod
    def _check_mcp_private(cls, blocks: tuple[str, ...]) -> tuple[str, ...]:
        NetworkPolicy.read({"allow": [], "private": blocks})
        return blocks

    @field_validator("root_path")
    @classmethod
    def _check_root_path(cls, path: str) -> str:
        if not _ROOT_PATH.fullmatch(path) or {".", ".."}.intersection(path.split("/")):
            raise InvalidParams(
                f"root_path={path!r:.80} is no path: give one such as /code, without a slash at its end."
            )
        return path

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(endpoints) - set(ENDPOINTS)):
            known = ", ".join(ENDPOINTS)
            raise InvalidParams(f"endpoints has {unknown[0]!r:.80}, which is not passed on. Known: {known}.")
        return endpoints

    @field_validator("passed_fields")
    @classmethod
    def _check_passed(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if taken := sorted(_OURS.intersection(names)):
            raise InvalidParams(f"passed_fields has {taken[0]!r}, which the gateway itself sends: leave it out.")
        return names

    @field_validator("upstream_profile")
    @classmethod
    def _check_profile(cls, profile: str) -> str:
        read_profile(profile)
        return profile

    @model_validator(mode="after")
    def _check_names_and_keys(self) -> GatewayConfig:
        advice = "give --api-key, or --set named_keys=true and make keys by `agent-tools keys`"
        check_keys(self.api_keys, self.host, with_others=self.named_keys or bool(self.oidc_issuer), advice=advice)
        if self.oidc_groups and not (self.oidc_issuer and self.named_keys):
            raise InvalidParams(
                "oidc_groups needs oidc_issuer, and named_keys=true for `agent-tools keys add --group`."
            )
        if self.oidc_client_id and not self.oidc_issuer:
            raise InvalidParams("oidc_client_id needs oidc_issuer, the URL of the identity provider.")
        if self.shell_name == self.tool_name:
            raise InvalidParams(f"tool_name and shell_name are both {self.shell_name!r:.40}: give two names.")
        return self

    @property
    def database_url(self) -> str:
        """The SQLAlchemy URL of the store."""
        return self.database or f"sqlite:///{self.data_dir.absolute() / DATABASE}"

    def pictures_shown(self, model: str) -> int:
        """Return how many pictures of a round's code a model is shown."""
        is_meant = any(fnmatchcase(model, pattern) for pattern in self.vision_models)
        return MAX_PICTURES_SHOWN if is_meant else 0

    @property
    def takes_functions(self) -> bool:
        """Code may be given functions to call: tools of MCP servers."""
        return bool(self.mcp_servers)

    @property
    def passes_clients_keys(self) -> bool:
        """Clients' own keys are sent to the upstream."""
        return not (self.upstream_key or self.api_keys or self.named_keys or self.oidc_issuer)

    @property
    def has_many_keys(self) -> bool:
        """There may be several keys, which share what there is."""
        return len(self.api_keys) > 1 or self.named_keys or bool(self.oidc_issuer)


def read_config(given: Mapping[str, Any]) -> GatewayConfig:
    """Return a configuration from values or their text, by name; None stands for the default.

    Raises:
        InvalidParams: a name is unknown, or a value cannot be used.
    """
    if not given.get("upstream"):
        read_as(GatewayConfig, {**given, "upstream": "http://none"})  # a misspelt name may be why
        raise InvalidParams(
            "No upstream is given: set the address of the models, such as --upstream http://localhost:8000/v1."
        )
    return read_as(GatewayConfig, given)
