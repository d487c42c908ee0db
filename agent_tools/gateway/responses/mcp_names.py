"""The names under which a model, and code, know the tools of MCP servers. Pure.

Two tools never share a name, and no tool gets another's name in a later response, which may list other tools: an
ambiguous name ends with a hash of label and tool name.
"""

from __future__ import annotations

import hashlib
import unicodedata

from agent_tools.code_mode.stubs import python_name
from agent_tools.gateway.remote_mcp.tool import plain_name
from agent_tools.gateway.responses.client_tools import MAX_NAME

_BETWEEN = "__"


def model_name(label: str, name: str) -> str:
    """Return the name of a server's tool for the model, in characters that all servers of models take."""
    plain = plain_name(name)
    whole = f"{label}{_BETWEEN}{plain}"
    is_clear = plain == name and _BETWEEN not in label and not label.endswith("_")
    return whole if is_clear and len(whole) <= MAX_NAME else _marked(whole, label, name)


def code_name(label: str, name: str, *, is_marked: bool = False) -> str:
    """Return the name of the function by which code calls a server's tool; a marked one is no other tool's."""
    plain = unicodedata.normalize("NFKC", python_name(f"{label}_{name}"))  # as Python reads it
    whole = f"mcp{plain}" if plain.startswith("_") else plain
    return _marked(whole, label, name) if is_marked else whole


def _marked(whole: str, label: str, name: str) -> str:
    mark = hashlib.sha256(f"{label}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{whole[: MAX_NAME - 9]}_{mark}"
