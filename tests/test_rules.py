"""Rules of the house, held by tests: what importing costs, what is exported, who may import whom, what is shipped."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import agent_tools
import agent_tools.agents
import agent_tools.code_mode
import agent_tools.models
import agent_tools.testing
import agent_tools.tools
from agent_tools.engines.docker import gateway_image, image
from tests.sources import FUNCTIONS, ROOT, of_the_host, sources

DISTRIBUTION = "agent-tools-sandbox"
HEAVY = {
    "docker",
    "zmq",
    "jupyter_client",
    "requests",
    "urllib3",
    "rich",
    "click",
    "httpx",
    "httpx2",
    "openai",
    "anyio",
    "json5",
}
EXPORTING = [
    agent_tools,
    agent_tools.agents,
    agent_tools.code_mode,
    agent_tools.models,
    agent_tools.testing,
    agent_tools.tools,
]


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/").stdout


@pytest.mark.parametrize(
    "module",
    [
        "agent_tools",
        "agent_tools.code_mode",
        "agent_tools.tools",
        "agent_tools.models",
        "agent_tools.sandbox.async_sandbox",
        "agent_tools.agents.turn.loop",
        "agent_tools.agents.react.agent",
        "agent_tools.agents.two_agents",
        "agent_tools.testing",
    ],
)
def test_importing_loads_nothing_heavy_and_starts_nothing(module: str) -> None:
    code = f"import sys, threading; before = set(sys.modules); import {module}; import json, signal\n"
    code += "print(json.dumps([sorted(set(sys.modules) - before), threading.active_count()]))"
    loaded, threads = json.loads(_python(code))
    assert HEAVY.isdisjoint(name.split(".")[0] for name in loaded)
    assert threads == 1


def test_constructing_a_tool_needs_no_engine() -> None:
    code = "import os; os.environ['DOCKER_HOST'] = 'unix:///nowhere'\n"
    assert "code_interpreter" in _python(
        code + "from agent_tools import CodeInterpreter; print(CodeInterpreter().name)"
    )


@pytest.mark.parametrize("module", EXPORTING, ids=lambda module: module.__name__)
def test_every_exported_name_resolves_and_is_listed_in_order(module: object) -> None:
    assert module.__all__ == sorted(module.__all__, key=lambda name: (not name.isupper(), name))  # type: ignore[attr-defined]
    for name in module.__all__:  # type: ignore[attr-defined]
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = agent_tools.nonsense


def core() -> set[str]:
    """Return the distributions of an installation without extras."""
    found: set[str] = set()
    pending = [DISTRIBUTION]
    while pending:
        name = pending.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        requirements = [Requirement(line) for line in importlib.metadata.requires(name) or ()]
        pending += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def test_the_core_install_is_lean() -> None:
    assert 5 < len(core()) <= 30, sorted(core())


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import agent_tools.agents, agent_tools.code_mode, agent_tools.models, agent_tools.sandbox, agent_tools.tools
from agent_tools.cli import cli
for name in cli.list_commands(None):
    assert (cli.get_command(None, name).short_help or "").startswith("Needs an extra") <= bool(cli._lazy[name].extra)
"""


def test_every_command_is_found_where_no_extra_is_installed() -> None:
    known = {name.lower().replace("_", "-") for name in core()}
    brought = importlib.metadata.packages_distributions()
    others = [module for module, names in brought.items() if not {n.lower().replace("_", "-") for n in names} & known]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *others], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_file_holds_more_than_600_lines() -> None:
    assert [each.name for each in sources() if len(each.text.splitlines()) > 600] == []


def test_no_function_holds_more_than_60_lines() -> None:
    functions = ((each.name, node) for each in sources() for node in each.of(*FUNCTIONS))
    assert [f"{name}:{node.lineno} {node.name}" for name, node in functions if _lines(node) > 60] == []


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body and function.end_lineno else 0


def test_every_module_says_what_it_is() -> None:
    assert len(sources()) > 200
    assert [each.name for each in sources() if not each.docstring] == []


@pytest.mark.timeout(600)
def test_a_built_wheel_carries_all_that_the_image_is_made_from(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")  # pip would compile itself and all that it installs
    build = [uv, "build", "--wheel", "--no-build-isolation", "--out-dir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    subprocess.run([uv, "pip", "install", "--no-deps", "--target", installed, wheel], check=True, capture_output=True)
    code = (
        "import agent_tools, json\n"
        "from agent_tools.engines import context; from agent_tools.engines.docker import gateway_image, image\n"
        "names = ['docker/seccomp.json', 'docker/debian_base.sh', 'fonts/LICENSE-Apache-2.0.txt']\n"
        "found = [str(context.shipped(n)) for n in names if context.shipped(n).is_file()]\n"
        "print(json.dumps([image.tag_for(), found, sorted(gateway_image.context_files())]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}  # before the checkout, which is on the path, too
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    tag, files, gateways = json.loads(done.stdout)
    assert gateways == sorted(gateway_image.context_files())
    assert {"Dockerfile", "docker/gateway.lock", "agent_tools/gateway/page/assets/page.js"} < set(gateways)
    assert tag == image.tag_for()
    assert len(files) == 3
    assert all(str(installed) in file for file in files)


@pytest.mark.docker
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_every_example_runs(path: Path, work_dir: Path) -> None:
    environment = {"M6_CODE_INTERPRETER_WORK_DIR": str(work_dir), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_file_holds_one_subject() -> None:
    """A subject of its own has a file of its own, named by its noun."""
    headings = [f"{each.name}: {line}" for each in sources() for line in re.findall(r"\n\n(# .*\.)\n(?=\n)", each.text)]
    assert headings == []


def test_folders_that_a_killed_process_leaves_have_a_name_that_a_later_one_removes() -> None:
    """`mkdtemp` of the machine's temporary folder is called in one place, which puts the process into the name."""
    calls = ((each.name, node) for each in of_the_host() for node in each.of(ast.Call))
    made = {
        name
        for name, call in calls
        if ast.unparse(call.func).endswith("mkdtemp") and "dir" not in {each.arg for each in call.keywords}
    }
    assert made == {"runtime/files/temp_work_dir.py"}


def test_no_file_takes_a_private_name_of_another() -> None:
    taken = [
        f"{each.name}: {alias.name}"
        for each in sources()
        for node in each.of(ast.ImportFrom)
        if node.level or (node.module or "").startswith("agent_tools")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert taken == []
