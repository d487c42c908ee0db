"""Frozen dataclasses that cost little to define.

`dataclass` compiles the methods that compare, hash and show a value anew for each class: a third of a millisecond that
every start of a process, and of a sandbox, pays for each. Here they are the same three functions for all classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """Do nothing: it speaks to type checkers."""
        return lambda function: function


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a class what `dataclass(frozen=True)` makes of it; methods that it defines itself are kept."""
    own = {name for name in _METHODS if name in vars(cls)}
    made = dataclass(frozen=True, eq=False, repr=False)(cls)
    for name in _METHODS.keys() - own:
        setattr(made, name, _METHODS[name])
    return made


def _equals(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _shown(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple([getattr(value, each.name) for each in fields(value) if each.compare])


_METHODS = {"__eq__": _equals, "__hash__": _hash, "__repr__": _shown}
