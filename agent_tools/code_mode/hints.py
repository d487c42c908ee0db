"""Write type hints as text, for the annotations in a stub, with the classes that they mention.

Models (TypedDict, dataclass, pydantic) become TypedDicts, enums become Literals. Types that cannot be sent raise
`NotCrossing`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import types
import typing
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typing_extensions

from agent_tools.code_mode.typed_dict_source import Field, typed_dict_source
from agent_tools.errors import AgentToolsError

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


class NotCrossing(AgentToolsError, TypeError):
    """A type in a signature cannot be sent to the guest."""


class HintWriter:
    """Writes type hints as text; collects the classes that they mention and the notes on parameters."""

    def __init__(self, blocks: dict[str, str]) -> None:
        self.blocks = blocks
        self.notes: dict[str, str] = {}

    def of(self, hint: Any, where: str) -> str:
        """Write a type hint; `where` is its place in error messages.

        Raises:
            NotCrossing: the type cannot be sent.
        """
        hint, _ = without_notes(hint)
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

    def _define(self, cls: type, members: Mapping[str, _Member], where: str) -> None:
        if cls.__name__ in self.blocks:
            return
        self.blocks[cls.__name__] = ""  # a class may mention itself
        fields = []
        for name, member in members.items():
            hint, note = without_notes(member.hint)
            text = self.of(hint, f"{where}: {cls.__name__}.{name}")
            fields.append(Field(name, text, member.is_required, member.note or note))
        del self.blocks[cls.__name__]  # so that it comes after the classes that it mentions
        self.blocks[cls.__name__] = typed_dict_source(cls.__name__, fields, _own_doc(cls))


def _own_doc(cls: type) -> str:
    """Return the class's docstring; '' for a generated one of a dataclass or dict."""
    doc = cls.__doc__ or ""
    return "" if doc.startswith(f"{cls.__name__}(") or "dict(" in doc[:12] else doc


@dataclass(frozen=True)
class _Member:
    """A field of a model."""

    hint: Any
    is_required: bool = True
    note: str = ""


def _members(cls: type) -> dict[str, _Member] | None:
    """Return the fields of a model; None for a class that is not a model."""
    if typing_extensions.is_typeddict(cls):
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        return {name: _Member(hint, _is_required(cls, name, hint)) for name, hint in hints.items()}
    if dataclasses.is_dataclass(cls):
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        return {each.name: _Member(hints[each.name], _has_no_default(each)) for each in dataclasses.fields(cls)}
    model_fields = getattr(cls, "model_fields", None)
    if isinstance(model_fields, dict):
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        return {
            info.alias or name: _Member(hints[name], info.is_required(), info.description or "")
            for name, info in model_fields.items()
        }
    return None


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    """Return whether a key of a TypedDict is required. For annotations in strings the class itself does not say."""
    origin = get_origin(hint)
    if origin in (typing_extensions.NotRequired, typing_extensions.Required):
        return origin is typing_extensions.Required
    return name in cls.__required_keys__


def _public(full: str) -> str:
    """Shorten pandas.core.frame.DataFrame to pandas.DataFrame: data libraries define their classes deep inside."""
    return f"{full.split('.')[0]}.{full.rpartition('.')[2]}"


def without_notes(hint: Any) -> tuple[Any, str]:
    """Divide `Annotated[hint, 'text']` into the hint and the text; the text of other hints is ''."""
    if get_origin(hint) is not Annotated:
        return hint, ""
    inner, *notes = get_args(hint)
    texts = [note if isinstance(note, str) else getattr(note, "description", None) for note in notes]
    return inner, "; ".join(text for text in texts if isinstance(text, str))
