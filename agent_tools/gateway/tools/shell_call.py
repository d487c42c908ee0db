"""A call of the shell as a model writes it: its commands and their limits. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from agent_tools.code_reader import checked_code
from agent_tools.errors import InvalidParams
from agent_tools.json_reader import JsonReading, read_json
from agent_tools.limits import Limits

MAX_COMMANDS = 16  # of one call; they run at once
_SHOWN = 'Give JSON such as {"commands": ["ls -l"]}.'


@dataclass(frozen=True)
class ShellCall:
    """The commands of a call. `timeout_ms` and `max_output_length` (characters) are None where the model set none.

    `notes` say how invalid escapes in its JSON were read.
    """

    commands: tuple[str, ...]
    timeout_ms: int | None = None
    max_output_length: int | None = None
    notes: tuple[str, ...] = ()


def read_shell_call(arguments: object) -> ShellCall:
    """Return the call in a model's arguments: `commands` as a list or one text, or `command`.

    Raises:
        InvalidParams: there are no commands in it, or they cannot be run.
    """
    try:
        reading = read_json(arguments, _is_sound) if isinstance(arguments, str) else JsonReading(arguments)
    except ValueError as exc:
        raise InvalidParams(f"The arguments are not JSON. {_SHOWN}") from exc
    given = reading.value
    if not isinstance(given, dict):
        raise InvalidParams(f"The arguments are no JSON object. {_SHOWN}")
    commands = _commands(given.get("commands", given.get("command")))
    checked_code("\n".join(commands), Limits())
    return ShellCall(commands, _number(given, "timeout_ms", 1), _number(given, "max_output_length", 0), reading.notes)


def _is_sound(given: Any) -> bool:
    """Return whether all quotes are closed in the commands."""
    try:
        for command in _commands(given.get("commands", given.get("command")) if isinstance(given, dict) else None):
            shlex.split(command)
    except ValueError:
        return False
    except InvalidParams:
        return True  # the call reports it later
    return True


def _commands(given: Any) -> tuple[str, ...]:
    commands = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else ()
    if not commands or not all(isinstance(each, str) for each in commands):
        raise InvalidParams(f"There are no commands. {_SHOWN}")
    if len(commands) > MAX_COMMANDS:
        raise InvalidParams(f"There are {len(commands):,} commands, more than {MAX_COMMANDS}: make several calls.")
    return commands


def _number(given: dict[str, Any], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 2**53:
        raise InvalidParams(f"{name}={value!r:.40} is not usable: give a number from {least} on.")
    return int(value)
