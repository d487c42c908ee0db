"""JSON schema as stubs: for tools that say what they take in that way, and for MCP servers."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from agent_tools.code_mode.stubs import Stub, python_name

_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
MAX_DEPTH = 8


def stub_of_schema(name: str, doc: str, schema: Any, result: Mapping[str, Any] | None = None) -> Stub:
    """The stub of a function whose keyword arguments are an object of this schema.

    A list of `{'name', 'type', 'description', 'required'}`, as Qwen-Agent's tools have it, is taken too. A parameter
    whose name Python cannot have gets one that it can (`python_name`), and crosses by its own.
    """
    if isinstance(schema, list):
        schema = {
            "properties": {each["name"]: each for each in schema},
            "required": [each["name"] for each in schema if each.get("required")],
        }
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    stub = Stub(name, [], "str" if result is None else "Any", doc=doc)
    texts = _Texts(stub.types, schema.get("$defs") or schema.get("definitions") or {}, _camel(name))
    ordered = sorted(properties, key=lambda each: each not in required)
    stub.parameters = ["*"] if ordered else []
    names: dict[str, str] = {}
    notes = []
    for each in ordered:
        written = python_name(each, names)
        names[written] = each
        text = texts.of(properties[each], _camel(written))
        stub.parameters.append(f"{written}: {text}" if each in required else f"{written}: {text} | None = None")
        note = properties[each].get("description") if isinstance(properties[each], Mapping) else None
        notes += [f"    {written}: {' '.join(str(note).split())}"] if note else []
    stub.names, stub.said = tuple(names), names
    if notes:
        stub.doc = "\n".join([stub.doc.rstrip(), "", "Args:", *notes]).strip()
    if result is not None:
        stub.returns = _Texts(stub.types, result.get("$defs") or {}, _camel(name)).of(result, "Result")
    return stub


class _Texts:
    def __init__(self, blocks: dict[str, str], definitions: Mapping[str, Any], prefix: str) -> None:
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
        """A definition, written once however often it is mentioned; it may mention itself."""
        if name not in self.known:
            definition = self.definitions.get(name)
            is_class = isinstance(definition, Mapping) and _is_class(definition) and name.isidentifier()
            self.known[name] = f"{self.prefix}{_camel(name)}" if is_class else "Any"
            self.known[name] = self.of(definition, _camel(name), depth + 1)
        return self.known[name]

    def _object(self, schema: Mapping[str, Any], hint: str, depth: int) -> str:
        properties = schema.get("properties") or {}
        if not _is_class(schema) or not hint.isidentifier():
            return "dict[str, Any]"
        name = f"{self.prefix}{hint}"
        required = set(schema.get("required") or ())
        lines = [f"class {name}(TypedDict):"]
        for each, inner in properties.items():
            text = self.of(inner, f"{hint}{_camel(each)}", depth + 1)
            note = inner.get("description") if isinstance(inner, Mapping) else None
            line = f"    {each}: {text if each in required else f'NotRequired[{text}]'}"
            lines.append(f"{line}  # {' '.join(str(note).split())}" if note else line)
        self.blocks[name] = "\n".join(lines)
        return name


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _is_class(schema: Mapping[str, Any]) -> bool:
    """Whether an object can be written as a class: it has fields, and all have usable names."""
    properties = schema.get("properties")
    return isinstance(properties, Mapping) and bool(properties) and all(map(_is_name, properties))


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.replace("-", "_").split("_"))
