"""Plain data, read from the text that the kernel shows.

The text is untrusted: it is bounded, parsed, and never run.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

MAX_CHARS = 64 * 1024
SCALARS = frozenset(
    (
        *("float16", "float32", "float64", "longdouble", "complex64", "complex128", "str_", "bytes_"),
        *(f"{sign}{name}" for sign in ("", "u") for name in ("int8", "int16", "int32", "int64", "longlong")),
    )
)
"""Types of NumPy whose values are shown as `np.float64(1.5)`."""
MAX_PARTS = 10_000  # commas and brackets; each may become an object many times its size


def plain_value(text: str) -> Any:
    """Return the value that Python would read from a text of literals; None for any other text.

    `nan` and `inf` are floats, and a scalar of NumPy, such as `np.float64(1.5)`, is the number, text or truth in it.
    """
    if len(text) > MAX_CHARS or sum(map(text.count, ",([{")) > MAX_PARTS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarnings about escapes: the text is not source code
            found = ast.literal_eval(_Numbers().visit(ast.parse(text.strip(), mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if _is_cut(found) else found


class _Numbers(ast.NodeTransformer):
    """Replaces values without a literal in Python, such as `nan`, by constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("nan", "inf") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Constant(node.attr == "True_") if _is_numpy(node) and node.attr in ("True_", "False_") else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        is_scalar = isinstance(node.func, ast.Attribute) and _is_numpy(node.func) and node.func.attr in SCALARS
        if is_scalar and len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Call):
            inner: ast.expr = self.visit(node.args[0])
            return inner
        return node


def _is_numpy(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "np"


def _is_cut(value: Any) -> bool:
    """Return whether a value holds `...`, which stands for values that were left out."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each is Ellipsis:
            return True
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set)):
            waiting += each
    return False
