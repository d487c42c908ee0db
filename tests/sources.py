"""The package's source files, read and parsed once for all tests that are about source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agent_tools"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_INDEXED = (*FUNCTIONS, ast.Attribute, ast.Call, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Name)
Kind = TypeVar("Kind", bound=ast.AST)


@dataclass(frozen=True)
class Source:
    """One file, with its nodes of the kinds that tests ask for."""

    name: str
    """Its path below the package."""
    text: str
    docstring: str | None
    nodes: list[ast.AST]

    def of(self, *kinds: type[Kind]) -> Iterator[Kind]:
        """Yield its nodes of these kinds."""
        yield from (node for node in self.nodes if isinstance(node, kinds))


@cache
def sources() -> list[Source]:
    """Return all files in the order of their paths."""
    return [_read(path) for path in sorted(PACKAGE.rglob("*.py"))]


def of_the_host(folder: str = "") -> list[Source]:
    """Return the host's files below a folder of the package; the guest has rules of its own."""
    return [each for each in sources() if each.name.startswith(folder) and "guest" not in Path(each.name).parts]


def _read(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, _INDEXED)]
    return Source(str(path.relative_to(PACKAGE)), text, ast.get_docstring(tree), nodes)
