"""The shell of a client: its calls are shown, and the client runs them and sends what came of them."""

from __future__ import annotations

from agent_tools.models.base import FunctionDefinition

LOCAL = {"type": "local"}


def local_shell(name: str) -> FunctionDefinition:
    """Return the client's shell as a function for the model."""
    commands = {"type": "array", "items": {"type": "string"}, "description": "The commands; they may run at once."}
    limits = {
        "timeout_ms": {"type": "integer", "description": "Milliseconds that they may run."},
        "max_output_length": {"type": "integer", "description": "Characters kept of what each prints."},
    }
    return {
        "name": name,
        "description": "Runs shell commands on the user's machine; returns the stdout, stderr and exit code of each.",
        "parameters": {
            "type": "object",
            "properties": {"commands": commands, **limits},
            "required": ["commands"],
            "additionalProperties": False,
        },
    }
