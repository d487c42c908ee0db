"""Items of earlier shell calls, as the arguments that the model wrote and the answer that it got. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from agent_tools.bodies.json_body import at_most
from agent_tools.gateway.requests.container_fields import Needed, Texts
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.gateway.tools.shell import commands_text
from agent_tools.gateway.tools.shell_call import MAX_COMMANDS
from agent_tools.tools.command_tool import CommandEnd

MAX_OUTPUTS = 4 * MAX_COMMANDS  # of one item; a client of its own may give several for a command
NO_OUTPUT = "(The output of this call is not known.)"


class _Action(RequestModel):
    commands: Texts = []
    timeout_ms: Annotated[int, Field(ge=0)] | None = None
    max_output_length: Annotated[int, Field(ge=0)] | None = None


class _ShellCall(RequestModel):
    action: _Action = _Action()


class _End(RequestModel):
    type: Needed
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**32)] = 0


class _Printed(RequestModel):
    outcome: _End = Field(default={}, validate_default=True)  # names its missing type
    stdout: str = ""
    stderr: str = ""


class _ShellOutput(RequestModel):
    output: Annotated[list[_Printed], at_most(MAX_OUTPUTS)] = []


def shell_arguments(item: Mapping[str, Any], param: str) -> str:
    """Return the arguments of a shell_call, at `param` of the request, as the model wrote them.

    Raises:
        ApiError: 400, it has no commands, or limits that are not numbers.
    """
    given = read(_ShellCall, item, param).action
    return json.dumps(given.model_dump(exclude_none=True), ensure_ascii=False)


def shell_answer(item: Mapping[str, Any], param: str) -> str:
    """Return the text for the model of a shell_call_output at `param` of the request.

    Raises:
        ApiError: 400, an output is malformed, or there are too many.
    """
    ends = [
        CommandEnd(index, each.outcome.exit_code, each.stdout, each.stderr, each.outcome.type == "timeout")
        for index, each in enumerate(read(_ShellOutput, item, param).output)
    ]
    return commands_text(ends) if ends else NO_OUTPUT
