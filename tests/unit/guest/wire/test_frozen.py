"""Frozen dataclasses as `dataclass` makes them, without what it compiles."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace

import pytest

from agent_tools.guest.wire.frozen import frozen


@frozen
class Ours:
    a: int
    b: tuple[str, ...] = ()
    c: list[int] = field(default_factory=list, repr=False, compare=False)


@dataclass(frozen=True)
class Theirs:
    a: int
    b: tuple[str, ...] = ()
    c: list[int] = field(default_factory=list, repr=False, compare=False)


@frozen
class Heir(Ours):
    d: float = 0.5


@frozen
class Own:
    a: int

    def __repr__(self) -> str:
        return "mine"


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_it_is_what_a_dataclass_is(kind: type[Ours]) -> None:
    one = kind(1, ("x",), [5])
    assert one == kind(1, ("x",), [6])
    assert one != kind(2, ("x",))
    assert hash(one) == hash(kind(1, ("x",)))
    assert len({one, kind(1, ("x",)), kind(1)}) == 2
    assert repr(one) == f"{kind.__name__}(a=1, b=('x',))"
    assert asdict(replace(one, a=3)) == {"a": 3, "b": ("x",), "c": [5]}
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(FrozenInstanceError):
        one.a = 2  # type: ignore[misc]
    match one:
        case kind(a, b):
            assert (a, b) == (1, ("x",))


def test_classes_are_different_and_heirs_have_all_fields() -> None:
    assert Ours(1) != Theirs(1)
    assert Ours(1) != Heir(1)
    assert Heir(1) == Heir(1, d=0.5) != Heir(1, d=0.6)
    assert repr(Heir(1)) == "Heir(a=1, b=(), d=0.5)"


def test_methods_of_its_own_are_kept() -> None:
    assert repr(Own(1)) == "mine"
    assert Own(1) == Own(1)


def test_what_cannot_be_hashed_says_so() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours(1, ["x"]))  # type: ignore[arg-type]
