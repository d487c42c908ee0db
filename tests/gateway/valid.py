"""A check that what a gateway sent is valid by the types of the `openai` package that is found, whatever its version.

    python valid.py < sent.json      a list of [name of a type below openai.types | "event" | SHELL, what was sent]

For packages as old as may be: what they do not know is let be, what they require must be there.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, get_args

import openai
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, ValidationError

SHELL = "event of a shell's response"
"""Is let be by packages that know no shell; they know no items of it either."""


def members() -> dict[str, type[BaseModel]]:
    """The types of a stream's events, by their `type`."""
    found = {}
    for member in get_args(get_args(ResponseStreamEvent)[0]):
        for name in get_args(member.model_fields["type"].annotation):
            found[name] = member
    return found


def kind_of(name: str, sent: dict[str, Any], events: dict[str, type[BaseModel]]) -> type[BaseModel]:
    if name in ("event", SHELL):
        return events[sent["type"]]
    module, _, kind = f"openai.types.{name}".rpartition(".")
    found: type[BaseModel] = getattr(importlib.import_module(module), kind)
    return found


def main() -> int:
    events = members()
    wrong = [said for name, sent in json.load(sys.stdin) if (said := problem(name, sent, events))]
    print(*wrong, f"openai {openai.__version__}: {len(wrong)} wrong", sep="\n")
    return bool(wrong)


def problem(name: str, sent: dict[str, Any], events: dict[str, type[BaseModel]]) -> str:
    """Return what is wrong with it, or ''."""
    if name == SHELL and "response.shell_call_command.added" not in events:
        return ""
    try:
        kind_of(name, sent, events).model_validate(sent)
    except (ValidationError, KeyError, AttributeError) as exc:
        return f"{name} {sent.get('type', '')}: {exc!s:.300}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
