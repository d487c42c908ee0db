"""The laws of CONTRIBUTING.md that are about source text; `.importlinter` holds the import contracts."""

from __future__ import annotations

import ast
import builtins

from tests.sources import FUNCTIONS, of_the_host, sources

HTTP_ANSWERS = {"ApiError", "BodyRefused"}
MOST_INNER_IMPORTS = 30


def test_every_exception_that_leaves_its_file_is_one_of_ours() -> None:
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} - {node.name}
        for each in of_the_host()
        for node in each.of(ast.ClassDef)
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
    names = {"environ", "getenv"}
    reading = {
        each.name
        for each in of_the_host()
        for node in each.of(ast.Attribute)
        if node.attr in names and ast.unparse(node.value) == "os"
    }
    assert reading == {"settings.py"}
    from_os = [node for each in of_the_host() for node in each.of(ast.ImportFrom) if node.module == "os"]
    assert [ast.unparse(node) for node in from_os if names & {each.name for each in node.names}] == []


def test_bodies_of_requests_are_read_in_one_folder() -> None:
    parsers = {"MultiPartParser", "SpooledTemporaryFile"}

    def reads(node: ast.Attribute | ast.Name) -> bool:
        if isinstance(node, ast.Name):
            return node.id in parsers
        is_read = node.attr in ("json", "body", "form", "stream") and ast.unparse(node.value).endswith("request")
        return is_read or (node.attr in parsers and ast.unparse(node.value) == "tempfile")

    doors = [each for folder in ("gateway", "wires", "mcp", "bodies") for each in of_the_host(folder)]
    found = {each.name for each in doors if any(map(reads, each.of(ast.Attribute, ast.Name)))}
    assert found == {"bodies/json_body.py", "bodies/files.py", "bodies/envelopes.py"}
    parsing = {
        each.name
        for each in of_the_host("wires")
        for node in each.of(ast.Attribute)
        if node.attr in ("loads", "model_validate_json")
    }
    stored, messages = {"wires/terminal/state.py", "wires/e2b/state.py"}, {"wires/terminal/shells.py"}
    assert parsing == stored | messages  # of a bounded WebSocket


def test_the_loop_between_model_and_tools_stands_in_one_file() -> None:
    agents = of_the_host("agents")
    making = {each.name for each in agents for node in each.of(ast.Call) if ast.unparse(node.func) == "Round"}
    assert making == {"agents/turn/loop.py"}


def test_whatever_is_caught_whole_is_caught_with_a_reason() -> None:
    broad = {"Exception", "BaseException"}
    hidden = [
        f"{each.name}:{node.lineno}"
        for each in of_the_host()
        for node in each.of(ast.Call)
        if getattr(node.func, "attr", getattr(node.func, "id", "")).endswith("suppress")
        and broad & {ast.unparse(argument) for argument in node.args}
    ]
    assert hidden == []
    lines = [
        (f"{each.name}:{number}", line)
        for each in sources()
        for number, line in enumerate(each.text.splitlines(), 1)
        if "noqa: BLE001" in line
    ]
    assert lines
    assert [place for place, line in lines if "noqa: BLE001  (" not in line] == []


UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules that make objects of bytes, and thereby run what these say."""


def test_imports_in_functions_are_few_and_each_says_why() -> None:
    found = {}
    for each in sources():
        lines = each.text.splitlines()
        within = {number for node in each.of(*FUNCTIONS) for number in range(node.lineno, (node.end_lineno or 0) + 1)}
        imports = (node for node in each.of(ast.Import, ast.ImportFrom) if node.lineno in within)
        found.update({f"{each.name}:{node.lineno}": lines[node.lineno - 1] for node in imports})
    assert [place for place, line in found.items() if "  # " not in line] == []
    assert len(found) <= MOST_INNER_IMPORTS, (
        "imports belong at the top; a command, or a rarely used room, can be loaded whole"
    )


def test_nothing_is_unpickled_on_the_host() -> None:
    imported = [
        f"{each.name}: {module}"
        for each in of_the_host()
        for node in each.of(ast.Import, ast.ImportFrom)
        for module in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names])
        if module.partition(".")[0] in UNPICKLERS
    ]
    assert imported == []
    assert any("pickle" in each.text for each in sources() if each.name.startswith("guest/"))
