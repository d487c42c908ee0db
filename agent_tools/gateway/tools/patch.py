"""The tool `apply_patch`: a model creates files, changes them by a diff, or deletes them in a container."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.shell import carry_files
from agent_tools.gateway.tools.v4a_diff import MAX_TEXT, DiffError, changed, created
from agent_tools.json_reader import JsonReading, read_json
from agent_tools.models.base import FunctionDefinition, JsonObject
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.base import BaseTool, Params, tool_errors

PATCH_NAME = "apply_patch"  # as models are trained
CREATE, UPDATE, DELETE = "create_file", "update_file", "delete_file"
SHOWN_DIR = "/mnt/data/"
_SHOWN = 'Give JSON such as {"type": "update_file", "path": "a.py", "diff": "@@\\n-old\\n+new"}.'
_DESCRIPTION = (
    "Creates, updates or deletes one file{place}. `diff` is a V4A diff: hunks that begin with '@@', or '@@ ' and a "
    "line before them, and whose lines begin with ' ' (context, about three lines), '-' or '+'; every line of a new "
    "file begins with '+'. The lines of a hunk must be those of the file."
)


@dataclass(frozen=True)
class PatchCall:
    """One operation; `diff` is '' where a file is deleted. `notes` say how invalid escapes in its JSON were read."""

    kind: str
    path: str
    diff: str = ""
    notes: tuple[str, ...] = ()

    @property
    def operation(self) -> JsonObject:
        """The operation in the form of items."""
        found = {"type": self.kind, "path": self.path}
        return found if self.kind == DELETE else {**found, "diff": self.diff}


def read_patch_call(arguments: object) -> PatchCall:
    """Return the operation in a call's arguments: the arguments themselves, or the object `operation` in them.

    Raises:
        InvalidParams: there is none.
    """
    try:
        reading = read_json(arguments) if isinstance(arguments, str) else JsonReading(arguments)
    except ValueError as exc:
        raise InvalidParams(f"The arguments are not JSON. {_SHOWN}") from exc
    given = reading.value
    if isinstance(given, dict) and isinstance(given.get("operation"), dict):
        given = given["operation"]
    kind, path = (given.get("type"), given.get("path")) if isinstance(given, dict) else (None, None)
    if kind not in (CREATE, UPDATE, DELETE) or not isinstance(path, str) or not path:
        raise InvalidParams(f"There is no operation with a type and a path. {_SHOWN}")
    diff = given.get("diff")
    if kind != DELETE and not isinstance(diff, str):
        raise InvalidParams(f"{kind} needs a diff. {_SHOWN}")
    return PatchCall(kind, path, diff if isinstance(diff, str) and kind != DELETE else "", reading.notes)


def patch_arguments(operation: Mapping[str, Any]) -> str:
    """Return an operation as the arguments that a model writes."""
    return json.dumps({name: operation[name] for name in ("type", "path", "diff") if name in operation})


def patch_function(place: str = "") -> FunctionDefinition:
    """Return the tool as a function for the model; `place` says where the files are."""
    texts = {"path": "The file's path.", "diff": "The diff; for delete_file, none."}
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    return {
        "name": PATCH_NAME,
        "description": _DESCRIPTION.format(place=place),
        "parameters": {
            "type": "object",
            "properties": {"type": {"type": "string", "enum": [CREATE, UPDATE, DELETE]}, **properties},
            "required": ["type", "path"],
            "additionalProperties": False,
        },
    }


class ContainerPatch(BaseTool):
    """The tool on a container's files."""

    def __init__(self, lease: ContainerLease) -> None:
        function = patch_function(" in the Linux container, at a path relative to /mnt/data or below it")
        self.name, self.description = PATCH_NAME, str(function["description"])
        self.parameters = function["parameters"]
        self.lease = lease
        super().__init__()

    def call(self, params: Params, **kwargs: Any) -> str:
        """Make the change, and return the answer for the model.

        Raises:
            ToolServiceError: it could not be made; nothing was changed then.
        """
        call = read_patch_call(params)
        sandbox = self.lease.sandbox()
        with tool_errors():
            notes = [*(f"note: {note}" for note in call.notes), carry_files(self.lease, sandbox)]
            notes += [_applied(sandbox, call), carry_files(self.lease, sandbox)]
        return self.lease.take_note() + "\n\n".join(filter(None, notes))


def _applied(sandbox: Sandbox, call: PatchCall) -> str:
    path = call.path.removeprefix(SHOWN_DIR)
    try:
        if call.kind == CREATE:
            text = created(call.diff)
            if sandbox.exists(path):
                raise DiffError("The file exists already: update it, or delete it first.")
            sandbox.write_file(path, text)
            return f"Created {call.path}."
        if call.kind == UPDATE:
            sandbox.write_file(path, changed(_text_of(sandbox, path), call.diff))
            return f"Updated {call.path}."
        if sandbox.stat(path, follow=False).is_dir:
            raise DiffError("It is a folder: only files are deleted.")
        sandbox.remove(path)
        return f"Deleted {call.path}."
    except (DiffError, OSError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise ToolServiceError(exception=exc, code="PatchFailed", message=f"{call.path}: {why}") from exc


def _text_of(sandbox: Sandbox, path: str) -> str:
    data = sandbox.read_file(path, max_bytes=4 * MAX_TEXT + 1)
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise DiffError("The file is too large, or no text in UTF-8.") from exc
