"""The laws of CONTRIBUTING.md that are about source text; `.importlinter` holds the import contracts."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agent_tools"
HTTP_ANSWERS = {"ApiError", "BodyRefused"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_INNER_IMPORTS = 30


@cache
def modules(folder: str = "") -> dict[str, ast.Module]:
    """The host's modules below a folder of the package, by path; the guest has rules of its own."""
    paths = sorted((PACKAGE / folder).rglob("*.py"))
    names = {str(path.relative_to(PACKAGE)): path for path in paths if "guest" not in path.parts}
    return {name: ast.parse(path.read_text()) for name, path in names.items()}


def places(is_meant: type[ast.AST] | tuple[type[ast.AST], ...], folder: str = "") -> Iterator[tuple[str, ast.AST]]:
    for name, module in modules(folder).items():
        yield from ((name, node) for node in ast.walk(module) if isinstance(node, is_meant))


def test_every_exception_that_leaves_its_file_is_one_of_ours() -> None:
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} - {node.name}
        for _, node in places(ast.ClassDef)
        if isinstance(node, ast.ClassDef)
    }

    def kinds(name: str) -> set[str]:
        return {name, *(kind for base in bases.get(name, ()) for kind in kinds(base))}

    def is_exception(name: str) -> bool:
        builtin = [getattr(builtins, kind, object) for kind in kinds(name)]
        return any(isinstance(kind, type) and issubclass(kind, BaseException) for kind in builtin)

    exceptions = set(filter(is_exception, bases))
    assert "KernelDied" in exceptions
    public = {name for name in exceptions if not name.startswith("_")}
    assert [name for name in sorted(public) if not kinds(name) & {"AgentToolsError", *HTTP_ANSWERS}] == []


def test_environment_variables_are_read_in_the_settings_alone() -> None:
    reading = {name for name, node in places(ast.Attribute) if ast.unparse(node) in ("os.environ", "os.getenv")}
    assert reading == {"settings.py"}
    from_os = [node for _, node in places(ast.ImportFrom) if isinstance(node, ast.ImportFrom) and node.module == "os"]
    assert [ast.unparse(node) for node in from_os if {"environ", "getenv"} & {each.name for each in node.names}] == []


def test_bodies_of_requests_are_read_in_one_folder() -> None:
    def reads(node: ast.AST) -> bool:
        text = ast.unparse(node)
        is_read = text.endswith(("request.json", "request.body", "request.form", "request.stream"))
        return is_read or text in ("MultiPartParser", "SpooledTemporaryFile", "tempfile.SpooledTemporaryFile")

    doors = ("gateway", "wires", "mcp", "bodies")
    found = {name for name, node in places((ast.Attribute, ast.Name)) if name.startswith(doors) and reads(node)}
    assert found == {"bodies/json_body.py", "bodies/files.py", "bodies/envelopes.py"}
    parsing = {name for name, node in places(ast.Attribute, "wires") if node.attr in ("loads", "model_validate_json")}
    stored, messages = {"wires/terminal/callers.py", "wires/e2b/calls.py"}, {"wires/terminal/commands.py"}
    assert {name for name in parsing if "/guest/" not in name} == stored | messages  # of a bounded WebSocket


def test_the_loop_between_model_and_tools_stands_in_one_file() -> None:
    making = {name for name, node in places(ast.Call, "agents") if ast.unparse(node).startswith("Round(")}
    assert making == {"agents/turn/loop.py"}


def test_whatever_is_caught_whole_is_caught_with_a_reason() -> None:
    broad = {"Exception", "BaseException"}
    hidden = [
        f"{name}:{node.lineno}"
        for name, node in places(ast.Call)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("suppress")
        and broad & {ast.unparse(argument) for argument in node.args}
    ]
    assert hidden == []
    lines = [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "noqa: BLE001" in line
    ]
    assert lines
    assert [place for place, line in lines if "noqa: BLE001  (" not in line] == []


UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules that make objects of bytes, and thereby run what these say."""


def test_imports_in_functions_are_few_and_each_says_why() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = path.read_text().splitlines()
        functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS))
        imports = (
            node for each in functions for node in ast.walk(each) if isinstance(node, (ast.Import, ast.ImportFrom))
        )
        found.update({f"{path.relative_to(PACKAGE)}:{node.lineno}": lines[node.lineno - 1] for node in imports})
    assert [place for place, line in found.items() if "  # " not in line] == []
    assert len(found) <= MOST_INNER_IMPORTS, (
        "imports belong at the top; a command, or a rarely used room, can be loaded whole"
    )


def test_nothing_is_unpickled_on_the_host() -> None:
    imported = [
        f"{name}: {module}"
        for name, node in places((ast.Import, ast.ImportFrom))
        for module in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]  # type: ignore[attr-defined]
        )
        if module.partition(".")[0] in UNPICKLERS
    ]
    assert imported == []
    assert any("pickle" in path.read_text() for path in (PACKAGE / "guest").rglob("*.py"))
