"""The tools that a model is shown: an OpenAPI document of some of the routes, by one table.

Each parameter has a plain `type`: Open WebUI shows a parameter without one as text.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from agent_tools.wires.terminal import requests as asked


class Tool(NamedTuple):
    """A tool: its name, its route, and what it tells the model."""

    name: str
    method: str
    path: str
    description: str
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None


TOOLS = (
    Tool(
        "run_python",
        "POST",
        "/python",
        "Run Python in this chat's kernel. Variables, imports and open objects stay for the next call, unlike with "
        "run_command; the last expression is the result; figures are shown to you as pictures. For work of more than "
        "240 seconds, write a script and use run_command.",
        body=asked.PythonBody,
    ),
    Tool(
        "run_command",
        "POST",
        "/execute",
        "Run a command line in bash, on a terminal. It is awaited for `wait` seconds (10 by default); one that goes on "
        "has status running, and get_process_status reads on.",
        asked.WaitQuery,
        asked.ExecuteBody,
    ),
    Tool(
        "get_process_status",
        "GET",
        "/execute/{process_id}/status",
        "Read the output of a command that goes on, from `offset` on, and whether it has ended.",
        asked.StatusQuery,
    ),
    Tool(
        "send_process_input",
        "POST",
        "/execute/{process_id}/input",
        "Type into a command that goes on.",
        body=asked.InputBody,
    ),
    Tool("kill_process", "DELETE", "/execute/{process_id}", "End a command that goes on.", asked.ForceQuery),
    Tool("list_processes", "GET", "/execute", "List the commands of this chat that go on or ended lately."),
    Tool("list_files", "GET", "/files/list", "List a folder.", asked.FolderQuery),
    Tool("read_file", "GET", "/files/read", "Read a text file, or some of its lines.", asked.ReadQuery),
    Tool("display_file", "GET", "/files/display", "Show a file to the user, in the panel of files.", asked.PathQuery),
    Tool(
        "write_file",
        "POST",
        "/files/write",
        "Write a text file anew; folders above it are made.",
        body=asked.WriteBody,
    ),
    Tool(
        "replace_file_content",
        "POST",
        "/files/replace",
        "Replace exact texts in a file.",
        body=asked.ReplaceBody,
    ),
    Tool("grep_search", "GET", "/files/grep", "Search the lines of files.", asked.GrepQuery),
    Tool("glob_search", "GET", "/files/glob", "Find files and folders by a pattern of names.", asked.GlobQuery),
    Tool(
        "read_user_terminal",
        "GET",
        "/api/terminals/user/output",
        "Read the end of what the user's own terminal shows.",
    ),
    Tool(
        "send_user_terminal_input",
        "POST",
        "/api/terminals/user/input",
        "Type into the user's own terminal.",
        body=asked.InputBody,
    ),
)


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document, which Open WebUI may ask for at every message."""
    paths: dict[str, dict[str, Any]] = {}
    for tool in TOOLS:
        paths.setdefault(tool.path, {})[tool.method.lower()] = _operation(tool)
    return {"openapi": "3.1.0", "info": {"title": "agent_tools", "version": "1"}, "paths": paths}


def _operation(tool: Tool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": tool.name,
        "summary": tool.name.replace("_", " "),
        "description": tool.description,
        "parameters": _parameters(tool),
        "responses": {"200": {"description": "Done."}},
    }
    if tool.body:
        content = {"application/json": {"schema": _plain(tool.body.model_json_schema())}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameters(tool: Tool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{process_id}" in tool.path:
        schema = {"type": "string", "description": "The id of the command."}
        found.append({"name": "process_id", "in": "path", "required": True, "schema": schema})
    if tool.query:
        schema = _plain(tool.query.model_json_schema())
        for name, part in schema["properties"].items():
            is_needed = name in schema.get("required", ())
            found.append({"name": name, "in": "query", "required": is_needed, "schema": part})
    return [{**each, "description": each["schema"].get("description", each["name"])} for each in found]


def _plain(schema: Any, definitions: Any = None) -> Any:
    """Return a schema of pydantic's without references, titles, and alternatives to null."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", definitions)
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    parts = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    flat = {**(parts[0] if parts else {}), **schema}
    left_out = {"anyOf", "title", "$defs", *(["default"] if flat.get("default", 0) is None else [])}
    return {name: _plain(value, definitions) for name, value in flat.items() if name not in left_out}
