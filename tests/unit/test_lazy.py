"""Packages whose names are imported at first use declare the same names to type checkers and to Python."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import agent_tools

PACKAGES = (
    "agent_tools",
    "agent_tools.agents",
    "agent_tools.code_mode",
)


def declared(file: str) -> list[tuple[str, str]]:
    """The (module, name) of every import that only type checkers see."""
    tree = ast.parse(Path(file).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and node.orelse]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return [(str(node.module), alias.name) for node in imports for alias in node.names]


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_python_see_the_same_names(package: str) -> None:
    module = importlib.import_module(package)
    found = declared(str(module.__file__))
    assert sorted(name for _, name in found) == sorted(module.__all__)
    for home, name in found:
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


def test_a_package_lists_its_modules_and_its_exports() -> None:
    assert {"errors", "__version__", "CodeInterpreter"} <= set(dir(agent_tools))
    with pytest.raises(AttributeError, match="module 'agent_tools' has no attribute 'nothing'"):
        _ = agent_tools.nothing  # type: ignore[attr-defined]


def test_windows_gets_a_sentence() -> None:
    code = "import sys; sys.platform = 'win32'; import agent_tools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: agent_tools needs Linux: on Windows, use it in WSL2")
