"""The OpenAPI document of the tools that Open WebUI offers to its model."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

from agent_tools.wires.routing import Operation
from agent_tools.wires.terminal.state import ROUTES, TerminalRequest


@ROUTES.on("GET", "/openapi.json")
async def _openapi(_: TerminalRequest) -> Any:
    return _document()


@cache
def _document() -> dict[str, Any]:
    """Return the OpenAPI document. Each parameter has a plain `type`: one without is shown to models as text."""
    paths: dict[str, dict[str, Any]] = {}
    for each in ROUTES.operations:
        if each.is_tool:
            paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {"openapi": "3.1.0", "info": {"title": "agent_tools", "version": "1"}, "paths": paths}


def _operation(each: Operation) -> dict[str, Any]:
    query, body = _schema(each.query), _schema(each.body)
    required = query.get("required", ())
    parameters = [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        for name, part in query["properties"].items()
    ]
    if "{process_id}" in each.path:
        part = {"type": "string", "description": "The id of the command."}
        parameters.append({"name": "process_id", "in": "path", "required": True, "schema": part})
    found: dict[str, Any] = {
        "operationId": each.name,
        "description": " ".join((each.handler.__doc__ or "").split()),
        "parameters": parameters,
        "responses": {"200": {"description": "Done."}},
    }
    if body["properties"]:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return dict(_plain(schema, schema.get("$defs", {})))


def _plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema of pydantic's without references, titles, and alternatives to null."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    parts = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    flat = {**(parts[0] if parts else {}), **schema}
    left_out = {"anyOf", "title", "$defs", *(["default"] if flat.get("default", 0) is None else [])}
    return {name: _plain(value, definitions) for name, value in flat.items() if name not in left_out}
