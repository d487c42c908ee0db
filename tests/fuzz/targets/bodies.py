"""Bodies of requests to the gateway, as far as they are read before anything is done.

The input is a program (see unfold.py) for the body's value; `R` as first byte: the body itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_tools.bodies.json_body import BodyRefused
from agent_tools.gateway.chat_request import read_chat_request
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.fingerprint import (
    MAX_FINGERPRINTS,
    ConversationFingerprint,
    ConversationIdentity,
)
from agent_tools.gateway.http import parsed
from agent_tools.gateway.reasoning_cipher import ReasoningCipher
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.container_fields import ContainerFields
from agent_tools.gateway.requests.fields import read
from agent_tools.gateway.responses.approvals import read_decisions
from agent_tools.gateway.responses.history import CallHistory, answered, check_outputs, container_of, messages_of_items
from agent_tools.gateway.responses.input_files import InputFile, InputFiles
from agent_tools.gateway.responses.request import read_request
from agent_tools.models.dialect.phrasing import phrased
from agent_tools.models.dialect.profile import UpstreamProfile
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target

MOST = MIB
WORDS = ("model", "input", "tools", "type", "message", "role", "user", "assistant", "content", "text", "input_text")
WORDS += (
    "function_call",
    "function_call_output",
    "code_interpreter_call",
    "call_id",
    "output",
    "outputs",
    "logs",
    "id",
)
WORDS += ("name", "arguments", "code", "reasoning", "input_file", "file_data", "filename", "data:text/csv;base64,YQ==")
WORDS += ("input_image", "image_url", "https://x", "function", "code_interpreter", "container", "auto", "file_ids")
WORDS += ("messages", "execute_python", "tool_choice", "allowed_tools", "mode", "required", "format", "json_schema")
WORDS += ("include", "metadata", "network_policy", "disabled", "temperature", "n", "stream_options", "include_usage")
WORDS += ("custom", "namespace", "custom_tool_call", "custom_tool_call_output", "input", "grammar", "syntax", "tools")
WORDS += (
    "mcp",
    "server_label",
    "server_url",
    "https://mcp.example.com/",
    "headers",
    "authorization",
    "require_approval",
)
WORDS += ("always", "never", "tool_names", "read_only", "allowed_callers", "programmatic", "direct", "conversation")
WORDS += (
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "approval_request_id",
    "approve",
    "reason",
    "error",
)
WORDS += ("compaction", "encrypted_content", "context_management", "compact_threshold", "conversation", "summary")
WORDS += ("max_tool_calls", "previous_response_id", "parameters", "summary", "effort", "file_id", "refusal", "store")


REACH = AllowedServers(["mcp.example.com"])


def unfold_body(data: bytes) -> Parts:
    """The body."""
    if data[:1] == b"R":
        return [unfold.text(data[1:], MOST)]
    return [unfold.as_json(unfold.value(data[1:], WORDS))]


def read_body(parts: Parts) -> None:
    """Read it as each kind of request that has a body of JSON."""
    body = parsed(parts[0])
    for reader in (_response, _chat, _container):
        refusal = _refusal(reader, body)
        assert refusal is None or (400 <= refusal.status < 500 and len(refusal.message.encode()) < 1_000)


def _refusal(reader: Callable[[dict[str, Any]], None], body: dict[str, Any]) -> ApiError | None:
    try:
        reader(body)
    except ApiError as exc:
        return exc
    return None


def _response(body: dict[str, Any]) -> None:
    request = read_request(body)
    read_request(body, "ignore")
    read_request(body, "ignore", servers=REACH)
    read_decisions(request.input)
    container_of(request.input)
    _conversation(request.input)
    files = InputFiles(NOTHING, _upload, None, MIB)
    before = messages_of_items(request.input, CallHistory("python", "shell", lambda _: None, files.part, _opened))
    check_outputs(request.input, before)
    tools = [{"function": dict(tool.offered)} for tool in request.tools.clients]
    asked = {"messages": answered(before), "tools": tools, **request.options}
    phrased(asked, UpstreamProfile(tools="prompted", roles="merged"))


def _chat(body: dict[str, Any]) -> None:
    read = read_chat_request(body, CONFIG)
    if read is not None:
        _conversation(read.messages)


def _conversation(entries: list[dict[str, Any]]) -> None:
    conversation = ConversationFingerprint.of(ConversationIdentity("me", cache_key="key"), entries)
    fingerprints = conversation.fingerprints
    assert len(fingerprints.items + fingerprints.calls + fingerprints.answers) <= 3 * MAX_FINGERPRINTS
    conversation.answered(entries[-1:])


def _container(body: dict[str, Any]) -> None:
    assert isinstance(read(ContainerFields, body).domains, tuple)


def _upload(id_: str) -> InputFile:
    return InputFile(id_[:20], 0, io.BytesIO)


def _opened(sealed: str, param: str) -> str:
    return SEAL.opened("me", sealed, param)


SEAL = ReasoningCipher(Path(__file__).parent)  # nothing that an input holds was sealed, so that it makes no key
CONFIG = GatewayConfig("http://u", router_tools=("execute_python",))
NOTHING: Any = None  # containers' files, which no request without code needs

TARGET = Target(
    read_body,
    unfold_body,
    allowed=(ApiError, BodyRefused),
    bound=Bound(seconds_per_byte=4e-6, bytes=8 * MIB, bytes_per_byte=24),
    vocabulary=WORDS,
    words=(b'{"model": "m", "input": [', b"[],", b"{},", b'"a": ', b"]}", b"\\ud800", b"1e999", unfold.repeat(3, 12)),
)
