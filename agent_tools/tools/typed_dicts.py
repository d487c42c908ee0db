"""TypedDicts as pydantic takes them: before Python 3.12, only those of typing_extensions."""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import TypedDict, get_type_hints


def typed_dict(name: str, hints: Mapping[str, Any], optional: Collection[str] = (), *, closed: bool = False) -> Any:
    """Make a TypedDict of hints; a `closed` one refuses other keys."""
    fields = {key: NotRequired[hint] if key in optional else hint for key, hint in hints.items()}
    make: Any = TypedDict
    made = make(name, fields)
    if closed:
        made.__pydantic_config__ = {"extra": "forbid"}
    return made


def portable(hint: Any) -> Any:
    """Return the hint with every TypedDict of `typing` in it replaced by one of typing_extensions."""
    if typing.is_typeddict(hint):
        return _rebuilt(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (None, Literal) or not arguments:
        return hint
    if origin is Annotated:
        annotated: Any = Annotated
        whole = (portable(arguments[0]), *arguments[1:])
        return annotated[whole]
    changed = tuple(portable(each) for each in arguments)
    if changed == arguments:
        return hint
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, changed) if origin is types.UnionType else Union[changed]
    return origin[changed]


def _rebuilt(hint: Any) -> Any:
    marks: tuple[Any, ...] = (Required, NotRequired)
    hints = {}
    for key, each in get_type_hints(hint, include_extras=True).items():
        while get_origin(each) in marks:
            (each,) = get_args(each)
        hints[key] = portable(each)
    made = typed_dict(hint.__name__, hints, hint.__optional_keys__)
    made.__doc__ = hint.__doc__
    return made
