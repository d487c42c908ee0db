"""The requested contents of an image: a flavour, and additional packages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Union, get_args

from agent_tools.errors import InvalidParams

Flavour = Literal["lean", "full", "agent", "newest", "office"]
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
STACKS: tuple[Flavour, ...] = ("lean", "newest")
"""The flavours that are not layers; `office` is a layer on the full one, the others are layers on the lean one."""

MAX_PACKAGES = 500
_DEBIAN = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?")


@dataclass(frozen=True)
class Recipe:
    """The requested contents of an image.

    Attributes:
        packages: additional Python packages, as requirements such as 'polars==1.35.0'.
        debian_packages: additional Debian packages, as names such as 'graphviz' or 'graphviz=2.42.4-3'.
        flavour: 'lean', 'full', 'agent', 'newest' or 'office'.

    Raises:
        InvalidParams: the flavour is unknown, an option is not a list, or a name cannot be a Debian package's.
    """

    packages: tuple[str, ...] = ()
    debian_packages: tuple[str, ...] = ()
    flavour: Flavour = "lean"

    def __post_init__(self) -> None:
        if self.flavour not in FLAVOURS:
            raise InvalidParams(f"flavour={self.flavour!r:.80} is not one of {', '.join(FLAVOURS)}.")
        for entry in self.packages:
            if not isinstance(entry, str):
                raise InvalidParams(f"packages has {entry!r:.80}, which is not a requirement such as 'polars==1.0.0'.")
        for name in self.debian_packages:
            if not isinstance(name, str) or not _DEBIAN.fullmatch(name):
                raise InvalidParams(f"debian_packages has {name!r:.80}, which is not the name of a Debian package.")

    @classmethod
    def read(cls, packages: object = (), debian_packages: object = (), flavour: object = None) -> Recipe:
        """Return the recipe for unchecked options."""
        lists = (
            _listed("packages", packages, "polars==1.0.0"),
            _listed("debian_packages", debian_packages, "graphviz"),
        )
        return cls(*lists, flavour or "lean")  # type: ignore[arg-type]

    @property
    def below(self) -> Recipe | None:
        """The recipe of the image below this layer; None if this is not a layer."""
        if self.packages or self.debian_packages:
            return Recipe(flavour=self.flavour)
        return None if self.flavour in STACKS else Recipe(flavour="full" if self.flavour == "office" else "lean")


RecipeLike = Union[Recipe, Sequence[str]]
"""A recipe, or additional Python packages for the lean image."""


def recipe_of(given: RecipeLike) -> Recipe:
    """Return a recipe."""
    return given if isinstance(given, Recipe) else Recipe.read(given)


def _listed(option: str, given: object, example: str) -> tuple[str, ...]:
    if isinstance(given, str):
        shell = f"in a shell --set '{option}=[\"{example}\"]'"
        raise InvalidParams(f"{option}={given!r:.80} is one string; give a list such as [{example!r}], {shell}.")
    names = given or ()
    if not isinstance(names, Sequence):
        raise InvalidParams(f"{option}={given!r:.80} is not usable: give a list such as [{example!r}].")
    if len(names) > MAX_PACKAGES:
        raise InvalidParams(f"{option} has {len(names)} entries, more than {MAX_PACKAGES}.")
    return tuple(names)
