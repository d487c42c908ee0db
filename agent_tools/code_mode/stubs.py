"""Stubs: the Python source by which the guest knows a host function. Typed signature, docstring, types it mentions.

Models (TypedDict, dataclass, pydantic) become TypedDicts, enums become Literals; a value that a stub types as datetime
arrives as one. Types that cannot cross are refused when the function is registered.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import keyword
import re
import textwrap
import types
import typing
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typing_extensions

from agent_tools.code_mode.class_source import Field, typed_dict_source

_PLAIN: dict[Any, str] = {
    **{each: each.__name__ for each in (str, int, float, bool, bytes, complex, list, dict, tuple, set, frozenset)},
    dt.datetime: "datetime.datetime",
    dt.date: "datetime.date",
    dt.time: "datetime.time",
    dt.timedelta: "datetime.timedelta",
    decimal.Decimal: "decimal.Decimal",
    uuid.UUID: "uuid.UUID",
    type(None): "None",
    None: "None",
    Any: "Any",
    object: "object",
    inspect.Parameter.empty: "Any",
}
_BY_NAME = {
    "pandas.DataFrame": "pandas.DataFrame",
    "numpy.ndarray": "numpy.ndarray",
    "PIL.Image.Image": "PIL.Image.Image",
}
_CONTAINERS = (list, dict, tuple, set, frozenset)
_ABSTRACT = {
    typing.get_origin(each): name
    for each, name in (
        (typing.Sequence[int], "list"),
        (typing.Iterable[int], "list"),
        (typing.Mapping[str, int], "dict"),
        (typing.MutableMapping[str, int], "dict"),
    )
}


_OF_THE_STUBS = ("_call", "_call_sync")  # the functions that the stubs' bodies call
UNSAID = " = ..."  # stands for a default that is no literal; the host fills it in


class NotCrossing(TypeError):
    """A type in a signature cannot cross to the guest."""


@dataclass
class Stub:
    """One function as the guest sees it. `parameters` are texts as in a signature; `types` are class definitions."""

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
        NotCrossing: a parameter is variadic, or a type cannot cross.
    """
    hints = typing_extensions.get_type_hints(function, include_extras=True)
    stub = Stub(name, [], "", doc=inspect.getdoc(function) or "")
    texts = _HintWriter(stub.types)
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
    """Make a valid Python name of any name: `user-id` becomes `user_id`, `from` becomes `from_`."""
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


class _HintWriter:
    """Writes type hints as text; collects the classes that they mention and the notes on parameters."""

    def __init__(self, blocks: dict[str, str]) -> None:
        self.blocks = blocks
        self.notes: dict[str, str] = {}

    def of(self, hint: Any, where: str) -> str:
        hint, _ = _without_notes(hint)
        origin, args = get_origin(hint), get_args(hint)
        if isinstance(hint, (typing.TypeVar, str)):
            raise NotCrossing(f"{where} is of type {hint!r}, which cannot cross.")
        if origin in (Union, types.UnionType):
            return " | ".join(self.of(each, where) for each in args)
        if origin is Literal:
            return f"Literal[{', '.join(repr(each) for each in args)}]"
        if origin in _CONTAINERS or origin in _ABSTRACT:
            name = _ABSTRACT.get(origin) or origin.__name__
            inner = ", ".join("..." if each is Ellipsis else self.of(each, where) for each in args)
            return f"{name}[{inner}]"
        if origin in (typing_extensions.NotRequired, typing_extensions.Required, typing.ClassVar):
            return self.of(args[0], where)
        if isinstance(hint, typing.Hashable) and hint in _PLAIN:
            return _PLAIN[hint]
        return self._of_class(hint, where)

    def _of_class(self, hint: Any, where: str) -> str:
        if isinstance(hint, type):
            full = f"{hint.__module__}.{hint.__qualname__}"
            known = next((text for text in (full, _public(full)) if text in _BY_NAME), None)
            if known:
                return _BY_NAME[known]
            if issubclass(hint, enum.Enum):
                return f"Literal[{', '.join(repr(each.value) for each in hint)}]"
            members = _members(hint)
            if members is not None:
                self._define(hint, members, where)
                return hint.__name__
        raise NotCrossing(
            f"{where} is of type {hint!r}, which cannot cross. Use plain types, or a TypedDict or dataclass."
        )

    def _define(self, cls: type, members: Mapping[str, tuple[Any, bool, str]], where: str) -> None:
        if cls.__name__ in self.blocks:
            return
        self.blocks[cls.__name__] = ""  # a class may mention itself
        fields = []
        for name, (hint, is_required, note) in members.items():
            inner, found = _without_notes(hint)
            fields.append(Field(name, self.of(inner, f"{where}: {cls.__name__}.{name}"), is_required, note or found))
        del self.blocks[cls.__name__]  # so that it comes after the classes that it mentions
        self.blocks[cls.__name__] = typed_dict_source(cls.__name__, fields, _own_doc(cls))


def _own_doc(cls: type) -> str:
    """Return the docstring that somebody wrote; dataclasses and dicts have one that nobody did."""
    doc = cls.__doc__ or ""
    return "" if doc.startswith(f"{cls.__name__}(") or "dict(" in doc[:12] else doc


def _members(cls: type) -> dict[str, tuple[Any, bool, str]] | None:
    """Return type, presence and note of each field of a model; None for a class that is no model."""
    if typing_extensions.is_typeddict(cls):
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        return {name: (hint, _is_required(cls, name, hint), "") for name, hint in hints.items()}
    if dataclasses.is_dataclass(cls):
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        return {each.name: (hints[each.name], True, "") for each in dataclasses.fields(cls)}
    model_fields = getattr(cls, "model_fields", None)
    if isinstance(model_fields, dict):
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        return {name: (hints[name], True, info.description or "") for name, info in model_fields.items()}
    return None


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    """Return whether a key of a TypedDict is required. The class itself does not know it of annotations in strings."""
    origin = get_origin(hint)
    if origin in (typing_extensions.NotRequired, typing_extensions.Required):
        return origin is typing_extensions.Required
    return name in cls.__required_keys__


def _public(full: str) -> str:
    """Shorten pandas.core.frame.DataFrame to pandas.DataFrame: data libraries define their classes deep inside."""
    return f"{full.split('.')[0]}.{full.rpartition('.')[2]}"


def _without_notes(hint: Any) -> tuple[Any, str]:
    if get_origin(hint) is not Annotated:
        return hint, ""
    inner, *notes = get_args(hint)
    texts = [note if isinstance(note, str) else getattr(note, "description", None) for note in notes]
    return inner, "; ".join(text for text in texts if isinstance(text, str))


def _parameter(parameter: inspect.Parameter, hint: Any, texts: _HintWriter, function: str) -> str:
    _, note = _without_notes(hint)
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
    if not doc:
        return ""
    text = doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    text = f'{text[:-1]}\\"' if text.endswith('"') else text
    return f'"""{text}"""\n' if "\n" not in text else f'"""{text}\n"""\n'
