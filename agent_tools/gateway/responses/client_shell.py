"""The shell of a client: the client runs the calls and sends their results."""

from __future__ import annotations

from collections.abc import Sequence

from agent_tools.gateway.requests.container_fields import LocalSkill
from agent_tools.models.base import FunctionDefinition
from agent_tools.skills.skill import entry, with_entries

LOCAL = {"type": "local"}


def local_shell(name: str, skills: Sequence[LocalSkill] = ()) -> FunctionDefinition:
    """Return the client's shell as a function for the model, with the skills on the client's machine."""
    description = "Runs shell commands on the user's machine; returns the stdout, stderr and exit code of each."
    commands = {"type": "array", "items": {"type": "string"}, "description": "The commands; they may run at once."}
    limits = {
        "timeout_ms": {"type": "integer", "description": "Milliseconds that they may run."},
        "max_output_length": {"type": "integer", "description": "Characters kept of what each prints."},
    }
    return {
        "name": name,
        "description": with_entries(description, [entry(each.name, each.description, each.path) for each in skills]),
        "parameters": {
            "type": "object",
            "properties": {"commands": commands, **limits},
            "required": ["commands"],
            "additionalProperties": False,
        },
    }
