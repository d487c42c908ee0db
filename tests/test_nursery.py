"""The nursery: what it imports ahead is what does not depend on a sandbox's environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.leaks import ROOT
from tests.nursery import READ_THE_ENVIRONMENT, bound_to_the_environment

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def test_each_module_that_reads_the_environment_when_it_is_imported_is_imported_anew():
    files = [path for path in (ROOT / "agent_tools/guest").rglob("*.py") if "environ" in path.read_text()]
    assert files
    assert {_module(path) for path in files if _reads_at_once(path)} == set(READ_THE_ENVIRONMENT)


def test_whoever_imports_such_a_module_is_imported_anew_and_so_on_upwards():
    launch, init, told = sorted(READ_THE_ENVIRONMENT)
    importers = {launch: {"command"}, "command": {"commands"}, told: {"session"}, "files": {"paths"}}
    assert bound_to_the_environment(importers) == {launch, init, told, "command", "commands", "session"}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _reads_at_once(path: Path) -> bool:
    names = (getattr(node, "attr", getattr(node, "id", "")) for node in _run_at_once(ast.parse(path.read_text())))
    return any(name in ("environ", "environb", "getenv") for name in names)


def _run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """All that runs when a module is imported: what is in functions is not."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, DEFINITIONS):
            yield child
            yield from _run_at_once(child)
