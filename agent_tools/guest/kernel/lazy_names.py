"""Names that a cell may use without an import: the module is imported when a cell first mentions the name."""

import ast
import builtins
import importlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

NAMES = {
    "json": ("json", None),
    "math": ("math", None),
    "os": ("os", None),
    "re": ("re", None),
    "signal": ("signal", None),
    "np": ("numpy", None),
    "pd": ("pandas", None),
    "matplotlib": ("matplotlib", None),
    "plt": ("matplotlib.pyplot", None),
    "sns": ("seaborn", None),
    "sympy": ("sympy", None),
    "Eq": ("sympy", "Eq"),
    "solve": ("sympy", "solve"),
    "symbols": ("sympy", "symbols"),
}
_MENTIONED = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")


class LazyNames:
    """Provides lazily imported names in a namespace, unless the user has defined them."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def look_at(self, source: str) -> None:
        """Provide every name that Python code reads and does not define; attributes and texts are none."""
        missing = {name for name in _MENTIONED.findall(source) if not self._has(name)}
        if not missing:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # which the compiler gives as well
                tree = ast.parse(source)
            read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            wanted = missing & read - set(_defined(tree))
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # of which the shell tells when it compiles
            return
        for name in wanted:
            self.provide(name)

    def provide(self, name: str) -> None:
        """Import the object of `name`; if that fails the name stays undefined."""
        if self._has(name):
            return
        module, attribute = NAMES[name]
        try:
            found = importlib.import_module(module)
            self.namespace[name] = getattr(found, attribute) if attribute else found
        except (Exception, SystemExit):  # noqa: BLE001  (of a module that an image of the user's has)
            return

    def _has(self, name: str) -> bool:
        return name in self.namespace or hasattr(builtins, name)


def _defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines at its top level."""
    nodes = [tree]  # no recursion: an expression may be deep
    while nodes:
        match node := nodes.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Lambda():
                pass
            case _:
                nodes += ast.iter_child_nodes(node)
