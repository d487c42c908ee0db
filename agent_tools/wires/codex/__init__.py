"""Codex's exec-server protocol: the sandbox of Codex (stdio) and of OpenAI's Agents API (`codex exec-server forward`).

The executor stands on the host: keys, relay and network stay there, and processes and files are those of a sandbox.
Format: https://github.com/openai/codex, codex-rs/exec-server-protocol/src/protocol.rs, compared with what
`codex exec-server --listen stdio` of 0.171.0 answers (`scripts/try codex`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.wires.codex.socket import MOUNT as MOUNT
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__, {"agent_tools.wires.codex.socket": "MOUNT"})
