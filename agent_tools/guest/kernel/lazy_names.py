"""Names that a cell may use without importing them: the module is imported when a cell first mentions the name."""

import ast
import builtins
import importlib
import re
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
    """Provides them in a namespace, unless the user has defined them."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def look_at(self, source: str) -> None:
        """Provide every name that Python code mentions: not as an attribute, nor in a text."""
        missing = {name for name in _MENTIONED.findall(source) if not self._has(name)}
        if not missing:
            return
        try:
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # of which the shell tells when it compiles
            return
        for name in missing & {node.id for node in nodes if isinstance(node, ast.Name)}:
            self.provide(name)

    def provide(self, name: str) -> None:
        """Import what `name` stands for; where that cannot be imported the name stays undefined."""
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
