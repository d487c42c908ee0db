"""Stubs: the Python source of a host function for the guest, with typed signature, docstring and types.

A value that a stub types as datetime arrives as one. Types that cannot be sent are rejected when a function is added.
"""

from __future__ import annotations

import ast
import enum
import inspect
import keyword
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typing_extensions

from agent_tools.code_mode.hints import HintWriter, NotCrossing, without_notes
from agent_tools.code_mode.typed_dict_source import docstring_source

_OF_THE_STUBS = ("_call", "_call_sync")  # functions that the stubs' bodies call
UNSAID = " = ..."  # stands for a default that is not a literal; the host fills it in


@dataclass
class Stub:
    """One function for the guest. `parameters` are texts as in a signature; `types` are class definitions."""

    name: str
    parameters: list[str]
    returns: str
    doc: str = ""
    types: dict[str, str] = field(default_factory=dict)
    positional: tuple[str, ...] = ()  # the names of positional-only parameters
    names: tuple[str, ...] = ()  # the names of all parameters, in order
    host_names: Mapping[str, str] = field(default_factory=dict)  # the host's name of a parameter, if it differs

    def signature(self, *, is_async: bool) -> str:
        """Return the first line of the definition."""
        return f"{'async ' if is_async else ''}def {self.name}({', '.join(self.parameters)}) -> {self.returns}:"

    def source(self, *, is_async: bool) -> str:
        """Return the definition, whose body calls the host."""
        args = "".join(f"{name}, " for name in self.positional)
        by_name = [name for name in self.names if name not in self.positional]
        given = ", ".join(f"{_quoted(self.host_names.get(name, name))}: {name}" for name in by_name)
        kwargs = f"{{{given}}}"
        if any(text.endswith(UNSAID) for text in self.parameters):
            kwargs = f"{{name: value for name, value in {kwargs}.items() if value is not ...}}"
        call = f'_call{"" if is_async else "_sync"}("{self.name}", ({args}), {kwargs})'
        body = f"{_docstring(self.doc)}return {'await ' if is_async else ''}{call}\n"
        return f"{self.signature(is_async=is_async)}\n{textwrap.indent(body, '    ')}"

    def summary(self, *, is_async: bool) -> str:
        """Return signature and docstring, for people and models."""
        body = f"{_docstring(self.doc)}..."
        return f"{self.signature(is_async=is_async)}\n{textwrap.indent(body, '    ')}"


def stub_of(function: Callable[..., Any], name: str, hidden: Sequence[str] = ()) -> Stub:
    """Make the stub of a typed Python function.

    Raises:
        NotCrossing: a parameter is variadic, or a type cannot be sent.
    """
    hints = typing_extensions.get_type_hints(function, include_extras=True)
    stub = Stub(name, [], "", doc=inspect.getdoc(function) or "")
    texts = HintWriter(stub.types)
    stub.returns = texts.of(hints.get("return", Any), f"{name}: the result")
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in hidden]
    for index, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise NotCrossing(f"{name}: *args and **kwargs cannot cross; name every parameter.")
        is_first_keyword = parameter.kind is parameter.KEYWORD_ONLY and (
            index == 0 or parameters[index - 1].kind is not parameter.KEYWORD_ONLY
        )
        stub.parameters += ["*"] if is_first_keyword else []
        stub.parameters.append(_parameter(parameter, hints.get(parameter.name, Any), texts, name))
        is_last_positional = parameter.kind is parameter.POSITIONAL_ONLY and (
            index + 1 == len(parameters) or parameters[index + 1].kind is not parameter.POSITIONAL_ONLY
        )
        stub.parameters += ["/"] if is_last_positional else []
    stub.positional = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_ONLY)
    stub.names = tuple(each.name for each in parameters)
    stub.doc = _with_parameter_notes(stub.doc, texts.notes)
    return stub


def module_source(stubs: Sequence[Stub], *, is_async: bool) -> str:
    """Return the source of the module that the guest imports as `tools`.

    Raises:
        NotCrossing: two functions mean different types by one name.
    """
    blocks = merged_types(stubs)
    public = [*blocks, *(stub.name for stub in stubs)]
    head = "from __future__ import annotations\n\nfrom typing import Any, Literal, TypedDict\n\n"
    head += "from typing import NotRequired\n\n"
    return "\n\n".join(
        [f"{head}__all__ = {public!r}\n", *blocks.values(), *(stub.source(is_async=is_async) for stub in stubs)]
    )


def merged_types(stubs: Sequence[Stub]) -> dict[str, str]:
    """Return all types that the stubs mention, each once."""
    merged: dict[str, str] = {}
    for stub in stubs:
        for name, block in stub.types.items():
            if merged.setdefault(name, block) != block or name in {each.name for each in stubs}:
                raise NotCrossing(f"{stub.name}: the name {name} means two different things; rename one.")
    return merged


def python_name(name: str, taken: Collection[str] = ()) -> str:
    """Convert any name to a valid Python name: `user-id` becomes `user_id`, `from` becomes `from_`."""
    found = name if name.isidentifier() else re.sub(r"[^0-9A-Za-z_]", "_", name)
    found = found if found.isidentifier() else f"_{found}"
    while found in taken or keyword.iskeyword(found) or found in _OF_THE_STUBS:
        found += "_"
    return found


def check_name(name: str) -> None:
    """Check that a function can have this name in the guest.

    Raises:
        NotCrossing: it cannot.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise NotCrossing(f"{name!r} cannot be the name of a function in the guest; give a public Python name.")


def _parameter(parameter: inspect.Parameter, hint: Any, texts: HintWriter, function: str) -> str:
    _, note = without_notes(hint)
    if note:
        texts.notes[parameter.name] = note
    text = f"{parameter.name}: {texts.of(hint, f'{function}: {parameter.name}')}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = parameter.default.value if isinstance(parameter.default, enum.Enum) else parameter.default
    if _is_literal(default):
        return f"{text} = {default!r}"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise NotCrossing(f"{function}: {parameter.name}: its default cannot cross; let it be given by name.")
    return f"{text}{UNSAID}"


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _with_parameter_notes(doc: str, notes: Mapping[str, str]) -> str:
    missing = [f"    {name}: {note}" for name, note in notes.items() if note not in doc]
    return "\n".join([doc.rstrip(), "", "Args:", *missing]).strip() if missing else doc


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isidentifier() else repr(text)


def _docstring(doc: str) -> str:
    return f"{docstring_source(doc)}\n" if doc else ""
