"""Items of earlier shell calls, as the arguments that the model wrote and the answer that it got. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.tools.shell import told
from agent_tools.gateway.tools.shell_call import MAX_COMMANDS
from agent_tools.tools.command_tool import CommandEnd

MAX_OUTPUTS = 4 * MAX_COMMANDS  # of one item; a client of its own may give several for a command
NO_OUTPUT = "(The output of this call is not known.)"


def shell_arguments(item: Mapping[str, Any], param: str) -> str:
    """Return the arguments of a shell_call, at `param` of the request, as the model wrote them.

    Raises:
        ApiError: 400, it has no commands, or limits that are no numbers.
    """
    action = Fields(Fields(item, param).object("action") or {}, f"{param}.action")
    commands = action.array("commands")
    if not all(isinstance(each, str) for each in commands):
        raise action.wrong("commands", "an array of strings")
    limits = {name: action.integer(name, 0) for name in ("timeout_ms", "max_output_length")}
    given = {name: value for name, value in limits.items() if value is not None}
    return json.dumps({"commands": commands, **given}, ensure_ascii=False)


def shell_told(item: Mapping[str, Any], param: str) -> str:
    """Return what the model is told of a shell_call_output at `param` of the request.

    Raises:
        ApiError: 400, an output is not one, or there are too many.
    """
    given = Fields(item, param).array("output")
    if len(given) > MAX_OUTPUTS:
        raise invalid(f"A shell call has at most {MAX_OUTPUTS} outputs.", f"{param}.output", "invalid_value")
    ends = [_end(each, index, f"{param}.output[{index}]") for index, each in enumerate(given)]
    return told(ends) if ends else NO_OUTPUT


def _end(given: Any, index: int, param: str) -> CommandEnd:
    output = Fields(given if isinstance(given, dict) else {}, param)
    outcome = Fields(output.object("outcome") or {}, f"{param}.outcome")
    timed_out = outcome.needed("type") == "timeout"
    exit_code = 0 if timed_out else outcome.integer("exit_code", -(2**31), 2**32) or 0
    return CommandEnd(index, exit_code, output.text("stdout") or "", output.text("stderr") or "", timed_out)
