"""A server named by a request, and its failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_tools.errors import ToolServiceError
from agent_tools.models.base import JsonObject


@dataclass(frozen=True)
class RemoteServer:
    """A server named by a request. `headers` are the client's secrets: they are sent to the server only."""

    label: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    about: str = ""


class RemoteFailure(ToolServiceError):
    """A server could not be reached, or its tool failed. `shown` is the text for the call's item."""

    def __init__(self, message: str, kind: str = "http_error", number: int = 0) -> None:
        super().__init__(code=kind, message=message)
        details = {"content": message} if kind == "mcp_tool_execution_error" else {"code": number, "message": message}
        self.shown: JsonObject = {"type": kind, **details}

    def __str__(self) -> str:
        return self.message
