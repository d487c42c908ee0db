"""Make stubs of JSON schemas, in which tools and MCP servers describe their arguments."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping
from typing import Any

from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.stubs import Stub, module_source, python_name
from agent_tools.code_mode.typed_dict_source import Field, one_line, typed_dict_source
from agent_tools.text import neutralise

Schema = Mapping[str, Any]
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
MAX_DEPTH = 8  # levels of nested schemas; deeper ones are Any
_ODD = (AttributeError, KeyError, TypeError, ValueError, RecursionError, SyntaxError, NotCrossing)
"""The errors of a malformed schema, or of one that cannot be expressed as types."""


def stub_of_schema(name: str, doc: str, schema: Any, result: Schema | None = None) -> Stub:
    """Make the stub of a function whose keyword arguments are an object of this schema.

    A list of `{'name', 'type', 'description', 'required'}`, as in Qwen-Agent's tools, is accepted, too. A parameter
    whose name is not valid in Python gets a valid one in the stub (`python_name`); the host gets the original name.
    A schema that cannot be expressed as types gives a stub without types.
    """
    try:
        stub = _typed(name, doc, schema, result)
        ast.parse(module_source([stub], is_async=False))
    except _ODD:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        names = properties if isinstance(properties, dict) else {}
        return _typed(name, doc, {"properties": {str(key): {} for key in names}}, {})
    return stub


def _typed(name: str, doc: str, schema: Any, result: Schema | None) -> Stub:
    if isinstance(schema, list):
        schema = {
            "properties": {each["name"]: each for each in schema},
            "required": [each["name"] for each in schema if each.get("required")],
        }
    properties: Schema = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    stub = Stub(name, [], "str" if result is None else "Any", doc=neutralise(doc))
    texts = _SchemaWriter(stub.types, schema.get("$defs") or schema.get("definitions") or {}, _camel(name))
    ordered = sorted(properties, key=lambda each: each not in required)
    stub.parameters = ["*"] if ordered else []
    names: dict[str, str] = {}
    notes = []
    for each in ordered:
        written = python_name(each, names)
        names[written] = each
        text = texts.of(properties[each], _camel(written))
        stub.parameters.append(f"{written}: {text}" if each in required else f"{written}: {text} | None = None")
        note = _description(properties[each])
        notes += [f"    {written}: {one_line(note)}"] if note else []
    stub.names, stub.host_names = tuple(names), names
    if notes:
        stub.doc = "\n".join([stub.doc.rstrip(), "", "Args:", *notes]).strip()
    if result is not None:
        stub.returns = _SchemaWriter(stub.types, result.get("$defs") or {}, _camel(name)).of(result, "Result")
    return stub


class _SchemaWriter:
    """Writes schemas as type hints, and collects the classes that they mention."""

    def __init__(self, blocks: dict[str, str], definitions: Schema, prefix: str) -> None:
        self.blocks = blocks
        self.definitions = definitions
        self.prefix = prefix
        self.known: dict[str, str] = {}

    def of(self, schema: Any, hint: str, depth: int = 0) -> str:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return "Any"
        if "$ref" in schema:
            return self._defined(str(schema["$ref"]).rpartition("/")[2], depth)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            is_literal = all(each is None or isinstance(each, (str, int, bool)) for each in values)
            return f"Literal[{', '.join(repr(each) for each in values)}]" if is_literal else "Any"
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return " | ".join(dict.fromkeys(self.of(each, hint, depth + 1) for each in schema[key])) or "Any"
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(self.of({**schema, "type": each}, hint, depth + 1) for each in kind)
        if kind == "array":
            return f"list[{self.of(schema.get('items'), hint, depth + 1)}]"
        if kind == "object" or "properties" in schema:
            return self._object(schema, hint, depth)
        return _PLAIN.get(str(kind), "Any")

    def _defined(self, name: str, depth: int) -> str:
        """Write a definition once, however often it is used; it may refer to itself."""
        if name not in self.known:
            definition = self.definitions.get(name)
            is_class = isinstance(definition, Mapping) and _is_class(definition) and name.isidentifier()
            self.known[name] = f"{self.prefix}{_camel(name)}" if is_class else "Any"
            self.known[name] = self.of(definition, _camel(name), depth + 1)
        return self.known[name]

    def _object(self, schema: Schema, hint: str, depth: int) -> str:
        properties = schema.get("properties") or {}
        if not _is_class(schema) or not hint.isidentifier():
            return "dict[str, Any]"
        name = f"{self.prefix}{hint}"
        required = set(schema.get("required") or ())
        fields = [
            Field(each, self.of(inner, f"{hint}{_camel(each)}", depth + 1), each in required, _description(inner))
            for each, inner in properties.items()
        ]
        self.blocks[name] = typed_dict_source(name, fields)
        return name


def _description(schema: object) -> str:
    found = schema.get("description") if isinstance(schema, Mapping) else None
    return neutralise(str(found or ""))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _is_class(schema: Schema) -> bool:
    """Return whether an object can be written as a class: it has fields with valid names."""
    properties = schema.get("properties")
    return isinstance(properties, Mapping) and bool(properties) and all(map(_is_name, properties))


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.replace("-", "_").split("_"))
