"""Packages whose exported names are imported at first use, so that importing the package loads nothing.

Such a package declares its names twice: for type checkers as imports, `from module import Name as Name`, and for Python
as a table of modules. tests/unit/test_lazy.py compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Exports = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]


def lazy_exports(package: str, names: Mapping[str, str]) -> Exports:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        names: module -> the names that the package exports from it, separated by spaces.
    """
    homes = {name: module for module, exported in names.items() for name in exported.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return sorted(homes, key=lambda name: (not name.isupper(), name)), get, names_of_package
