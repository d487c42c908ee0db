"""The blocks of README.md and docs/: Python can be read and runs, and the lines of shell blocks run in order."""

from __future__ import annotations

import ast
import asyncio
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.cli.mcp_config import CLIENTS, uvx_command
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.extras import requirement
from agent_tools.gateway.telemetry import Metrics
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from supply import limits, other_clients
from supply.site import links
from tests.gateway.asking import code
from tests.gateway.conftest import NewGateway, new_gateway, process_runtime
from tests.kubernetes.conftest import cluster, kubeconfig

__all__ = ["cluster", "kubeconfig", "new_gateway", "process_runtime"]

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")] + sorted(ROOT.glob("docs/*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(path.name, block) for path in DOCUMENTS for block in BLOCK.findall(path.read_text())]
SHELL = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PLACES = re.compile(r"(?<![\w.:/-])(?:/(?=(?:backups|opt|srv|var/log)/)|~/)")
"""The beginnings of the machine's folders: in the test they are in its own folder."""
SHELL_ELSEWHERE = {
    ".venv/bin/": "tests/benchmarks",
    "agent-tools bundle": "tests/release/bundle.py",
    "agent-tools chat": "it needs a model: tests/docker/test_cli_chat.py",
    "agent-tools clean": "it is for the whole machine: tests/docker/test_reaping.py",
    "agent-tools doctor": "tests/unit/cli/test_doctor.py, tests/docker/test_conformance.py",
    "agent-tools fleet": "it needs Ray: tests/integrations/ray.py",
    "agent-tools image": "it changes images of the machine: tests/docker/test_images.py, scripts/try flavours",
    "agent-tools jupyter serve": "it serves: tests/docker/test_jupyter.py",
    "agent-tools mcp --": "it serves: tests/mcp_door",
    "agent-tools worker": "it needs a key of Anthropic's: tests/integrations/claude_agents.py",
    "agent-tools/bin/": "a bundle: tests/release/bundle.py",
    "cd": "a checkout or a bundle: tests/deploy/test_compose.py, tests/release/bundle.py",
    "codex exec-server": "it needs a key of OpenAI's: scripts/try codex",
    "docker": "registries and compose: tests/deploy/test_compose.py",
    "export DOCKER_HOST": "it needs Podman: scripts/try matrix",
    "helm": "it needs a cluster: tests/deploy/test_kubernetes.py",
    "jupyter": "scripts/try integrations jupyterlab",
    "kubectl": "it needs a cluster: tests/deploy/test_kubernetes.py",
    "pip": "scripts/release and scripts/try integrations install what pages name",
    "python evaluate.py": "the program is the reader's: scripts/try clients",
    "ray": "it needs Ray: tests/integrations/ray.py",
    "scripts/": "the checkout's own scripts: CI",
    "sh": "a bundle: tests/release/bundle.py",
    "sha256sum": "a bundle: tests/release/bundle.py",
    "vllm": "it needs a model: scripts/try clients",
    **dict.fromkeys(
        ("install", "systemctl", "python3 -m venv", "useradd"), "it needs root: tests/deploy/test_systemd.py"
    ),
    **dict.fromkeys(("cp", "tar"), "tests/deploy/test_compose.py"),
    **dict.fromkeys(("ln", "rm", "userdel"), "it changes the machine"),
}
"""The beginnings of lines of shell blocks that do not run here, with what runs what they show, or why nothing does."""
MCP = next(block for name, block in BLOCKS if name == "mcp.md")
PAGES = sorted(ROOT.glob("docs/integrations/*.md"))
SANDBOX = next(block for name, block in BLOCKS if name == "python.md" and "AsyncSandbox() as" in block)
Names = dict[str, Any]
ASSERTS_ITSELF: Callable[[Names], bool] = bool
RUN: dict[tuple[str, int], Callable[[Names], bool]] = {
    ("README.md", 0): lambda names: names["execution"].value == 10 and len(names["execution"].figures) == 1,
    ("README.md", 1): lambda names: (names["execution"].value, names["result"].stdout) == (42, b"2\n"),
    ("index.md", 0): ASSERTS_ITSELF,
    ("first-steps.md", 0): lambda names: "4" in names["markdown"] and len(names["execution"].figures) == 1,
    ("python.md", 0): lambda names: "42" in names["answer"],
    ("volumes.md", 0): lambda names: (names["execution"].value, names["total"]) == (350, b"350"),
    ("options.md", 0): lambda names: max(map(len, names["execution"].stdout.split())) == 500,
    ("network.md", 0): lambda names: "a secret of yours" not in repr(names["code_interpreter"].as_sandbox.options),
    ("frameworks.md", 0): lambda names: names["schema"]["name"] == "code_interpreter" and "42" in names["answer"],
    ("code-mode.md", 0): lambda names: (
        names["execution"].value == (21.5, "paid 250")
        and len(names["execution"].host_calls) == 2
        and names["weather"] == {"celsius": 21.5}
    ),
    ("agents.md", 1): lambda names: (
        "42" in names["response"][1]["content"] and names["response"][-1]["content"] == "It is 42."
    ),
    ("security.md", 0): ASSERTS_ITSELF,
    ("checkpoints.md", 0): ASSERTS_ITSELF,
    ("checkpoints.md", 1): ASSERTS_ITSELF,
    ("checkpoints.md", 2): ASSERTS_ITSELF,
    ("pool.md", 0): ASSERTS_ITSELF,
    ("upstreams.md", 0): ASSERTS_ITSELF,
    ("pool.md", 1): ASSERTS_ITSELF,
    ("audit.md", 0): ASSERTS_ITSELF,
    ("density.md", 0): ASSERTS_ITSELF,
    ("engines.md", 0): ASSERTS_ITSELF,
    ("image.md", 0): ASSERTS_ITSELF,
    ("state.md", 1): lambda names: json.loads(Path("session.ipynb").read_text())["nbformat"] == 4,
    ("training.md", 0): lambda names: names["score"](names["rollouts"][0]) == 1.0,
    ("skills.md", 0): lambda names: names["result"].stdout == b"{'a': 4, 'b': 6}\n",
}
"""Blocks that run as they stand, by page and number, with what must be true of their names afterwards."""
PREPARED = {
    ("agents.md", 0),
    *((page, 0) for page in ("clients.md", "gateway.md", "kubernetes.md", "mcp.md", "two-agents.md")),
}
PREPARED |= {("python.md", 2), ("skills.md", 1)}
"""Blocks that a test of their own runs, before a scripted model, a gateway or a cluster."""
ELSEWHERE = {
    ("deploy.md", 0): "tests/deploy/test_page.py",
    ("engines.md", 1): "scripts/try gvisor, on an engine that has gVisor",
    ("fleet.md", 0): "tests/integrations/ray.py",
    ("state.md", 0): "tests/docker/test_state.py",
    ("python.md", 1): "it builds an image with packages, as tests/docker/test_images.py does",
}
"""The other blocks, with what runs what they show."""


def parsed(block: str) -> ast.Module:
    return compile(block, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 7


def test_each_block_runs_in_a_test() -> None:
    known = {*RUN, *PREPARED, *ELSEWHERE}
    assert {
        (page, number) for page, blocks in groupby(BLOCKS, itemgetter(0)) for number, _ in enumerate(blocks)
    } == known


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[name for name, _ in BLOCKS])
def test_a_block_can_be_read_and_has_what_it_imports(block: str) -> None:
    for node in ast.walk(parsed(block)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def shell_lines(page: Path) -> list[str]:
    """The commands of a page in order; in a block with prompts, those after them."""
    found = []
    for block in SHELL.findall(page.read_text()):
        lines = [line.strip() for line in re.sub(r"\\\n", " ", block).splitlines()]
        found += [line[2:] for line in lines if line.startswith("$ ")] or [
            line for line in lines if line[:1] not in "#"
        ]
    return found


def is_elsewhere(line: str) -> str | None:
    """The beginning in the table of what is not run here."""
    words = re.sub(r"^(?:[A-Z_]+=\S* +)+", "", line)
    patterns = {each: each if each[-1] in "/-" else rf"{each}(?!\w)" for each in SHELL_ELSEWHERE}
    found = [each for each, pattern in patterns.items() if re.match(pattern, words)]
    return found[0] if found else None


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a line of a shell block with the command line of this process; of a server, its settings are read."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|>")
    words.whitespace_split = True
    command, given, target = list(words), "y\n", None
    while command and (command[0] == "export" or re.match("[A-Z0-9_]+=", command[0])):
        name, _, value = command.pop(0).partition("=")
        if name != "export":
            monkeypatch.setenv(name, value)
    if command[:1] == ["echo"]:
        given, command = f"{command[1]}\n", command[command.index("|") + 1 :]
    for mark in ("|", ">", ">>"):
        if mark in command:
            target = command[-1] if mark != "|" else None
            command = command[: command.index(mark)]
    if not command:
        return
    assert command[0] == "agent-tools", f"{line}: nothing says who runs this"
    importlib.import_module("mcp.client.stdio")  # keeps the standard error of the moment in which it is imported
    done = CliRunner().invoke(
        cli, [*command[1:], *(["--print-settings"] if command[1] == "serve" else [])], input=given
    )
    assert done.exit_code == 0, f"{line}\n{done.output}"
    if target:
        Path(target).write_text(done.stdout)


SHELL_PAGES = [page for page in DOCUMENTS if page.name != "CONTRIBUTING.md"] + PAGES
SHELL_PREPARED: dict[str, dict[str, str]] = {
    "bring-your-own-sandbox.md": {"keys": "a-key-of-yours\n"},
    "command-line.md": {"data.csv": "a\n1\n", "analysis.py": "import sys; print(open('data.csv').read(), sys.argv)"},
}
"""Files that a page says the reader has."""


def with_mark(page: Path) -> Any:
    is_docker = any(re.search("agent-tools (run|repl|jupyter install)", line) for line in shell_lines(page))
    return pytest.param(page, id=page.name, marks=[pytest.mark.docker] if is_docker else [])


@pytest.mark.parametrize(
    "page", [with_mark(page) for page in SHELL_PAGES if not all(map(is_elsewhere, shell_lines(page)))]
)
def test_the_shell_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if request.node.get_closest_marker("docker"):
        request.getfixturevalue("docker_engine")
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "AGENT_TOOLS_GATEWAY_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name, text in SHELL_PREPARED.get(page.name, {}).items():
        (tmp_path / name).write_text(text)
    if page.name in ("runbook.md", "usage.md"):  # of a gateway that runs
        run_line("agent-tools keys add alice", monkeypatch)
    if page.name == "skills.md":
        run(next(block for name, block in BLOCKS if name == page.name).partition("with Sandbox")[0])
    for folder in ("backups", "srv/data", "srv/shared", "var/log/agent-tools", ".codex", "home"):
        (tmp_path / folder).mkdir(parents=True)
    for line in shell_lines(page):
        if not is_elsewhere(line):
            run_line(PLACES.sub(f"{tmp_path}/", line), monkeypatch)
    shared_runtime("docker").close_all()


def test_few_lines_of_shell_blocks_run_elsewhere() -> None:
    left_out = [
        (page.name, is_elsewhere(line)) for page in SHELL_PAGES for line in shell_lines(page) if is_elsewhere(line)
    ]
    assert {name for _, name in left_out} == set(SHELL_ELSEWHERE)
    assert sum(str(name).startswith("agent-tools ") for _, name in left_out) <= 40
    assert len(left_out) <= 110


def test_a_block_that_no_program_could_run_as_it_stands_says_where_it_runs() -> None:
    for name, block in [*BLOCKS, *((page.name, block) for page in PAGES for block in BLOCK.findall(page.read_text()))]:
        try:
            compile(block, name, "exec")
        except SyntaxError:
            assert block.startswith("# in a notebook, or in `python -m asyncio`"), name


def run(block: str) -> Names:
    """Run a block as a cell of a notebook would, and return its names."""
    names: Names = {"__name__": "block"}
    code = compile(block, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waited = eval(code, names)
    if waited is not None:
        asyncio.run(waited)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker_engine: DockerEngine) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shared_runtime("docker").close_all()


@pytest.mark.docker
@pytest.mark.parametrize(("page", "number"), RUN, ids=[f"{page}-{number}" for page, number in RUN])
def test_a_block_runs_as_it_stands(page: str, number: int, folder: Path) -> None:
    assert RUN[page, number](run([block for name, block in BLOCKS if name == page][number]))


@pytest.mark.docker
def test_agents_run_as_they_stand_with_models_of_a_scripted_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sales.csv").write_text("dollars\n100\n")
    (folder / "data").mkdir()
    (folder / "data" / "traffic_accidents.csv").write_text("accidents,rain\n3,1\n5,2\n")
    read = ScriptedReply(calls=[ScriptedCall("file_access", {"path": "traffic_accidents.csv"})])
    count = ScriptedReply(
        calls=[ScriptedCall("code_interpreter", {"code": "len(pd.read_csv('traffic_accidents.csv'))"})]
    )
    convert = ScriptedReply(calls=[ScriptedCall("to_euros", {"dollars": 100})])
    script = {
        "qwen-max": [convert, "92 euros."],
        "gpt-4o": [read, "Two columns."],
        "o3-mini": [count, "Rain.", "Rain, too."],
    }
    with ScriptedServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        for page in ("agents.md", "two-agents.md"):
            run(next(block for name, block in BLOCKS if name == page))
    assert capsys.readouterr().out.endswith("92 euros.\nRain.\nRain, too.\n")
    assert "\n2\n" in str(server.requests[-2]["messages"][-1]["content"]), "the file reached the sandbox"


@pytest.mark.docker
def test_the_page_of_kubernetes_runs_as_it_stands(kubeconfig: Path) -> None:
    names = run(next(block for name, block in BLOCKS if name == "kubernetes.md"))
    assert names["sandbox"].options.engine == "kubernetes"


@pytest.mark.docker
def test_the_client_of_the_gateway_runs_as_it_stands(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    answer = [code("import datetime; datetime.date(2000, 2, 29).strftime('%A')"), "A Tuesday."]
    gateway = new_gateway({"the-model": answer}, docker_runtime)
    block = next(block for name, block in BLOCKS if name == "gateway.md")
    names = run(block.replace("http://127.0.0.1:8080", gateway.url))
    names["client"].close()
    assert names["response"].output[0].outputs[0].logs == "'Tuesday'"
    assert names["response"].output_text == "A Tuesday."


@pytest.mark.docker
def test_two_turns_of_a_client_run_as_they_stand(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    gateway = new_gateway({"the-model": [code("x = 41"), "Set.", code("x + 1"), "42."]}, docker_runtime)
    block = next(block for name, block in BLOCKS if name == "clients.md")
    names = run(block.replace("http://127.0.0.1:8080", gateway.url))
    names["client"].close()
    assert (names["second"].output_text, len(names["containers"])) == ("42.", 1)
    assert "42" in gateway.upstream.requests[-1]["messages"][-1]["content"]


@pytest.mark.docker
def test_skills_are_uploaded_as_the_page_says(
    new_gateway: NewGateway, docker_runtime: Runtime, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = ScriptedReply(
        calls=[ScriptedCall("shell", {"commands": ["python skills/csv-total/scripts/total.py in.csv"]})]
    )
    gateway = new_gateway({"m": [total, "No such file."]}, docker_runtime)
    first, second = (block for name, block in BLOCKS if name == "skills.md")
    names = {**run(first), **run(second.replace("http://127.0.0.1:8080", gateway.url))}
    with names["client"] as client:
        assert [version.version for version in client.skills.versions.list(names["skill"].id)] == ["2", "1"]


def test_the_table_of_clients_has_all_that_are_tried_at_their_versions() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    for client in other_clients.CLIENTS.values():
        for package in client.packages[:1]:
            name, _, pinned = package.replace("==", "@").rpartition("@")
            assert f"| {name.split('[')[0]} {pinned} |" in page, package
        assert (ROOT / "tests" / "other_clients" / client.script).is_file()


@pytest.mark.docker
def test_the_sandbox_runs_as_it_stands(docker_engine: DockerEngine) -> None:
    names = run(SANDBOX)
    shared_runtime("docker").settle()
    assert names["execution"].value == 42
    assert (names["result"].exit_code, names["result"].stdout) == (0, b"2\n")
    with tarfile.open(fileobj=io.BytesIO(names["saved"].tar)) as tar:
        assert "data.csv" in {Path(name).name for name in tar.getnames()}


@pytest.mark.docker
def test_the_conversation_with_the_mcp_server_runs_as_it_stands(docker_engine: DockerEngine) -> None:
    names = run(MCP)
    assert names["answer"].structured_content["result"] == "21"
    assert names["file"].contents[0].text == "saved"


def test_the_configuration_of_clients_is_what_the_command_prints() -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs" / "mcp.md").read_text(), re.MULTILINE | re.DOTALL)
    command = [part.replace(requirement("mcp"), "/path/to/checkout[mcp]") for part in uvx_command()]
    assert shown.strip() == CLIENTS["claude-desktop"].written(command)
    assert f"or {', '.join(list(CLIENTS)[1:])}" in (ROOT / "docs" / "mcp.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_page_of_a_framework_can_be_read(page: Path) -> None:
    """Its blocks run where the framework is installed: scripts/integrations."""
    blocks = [parsed(block) for block in BLOCK.findall(page.read_text())]
    assert len(blocks[0].body) <= 10
    named = [node.module for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    named += [
        each.name for block in blocks for node in ast.walk(block) if isinstance(node, ast.Import) for each in node.names
    ]
    assert any(str(module).startswith("agent_tools.integrations.") for module in named)


def test_each_page_defines_the_names_that_its_blocks_use(tmp_path: Path) -> None:
    for page in [*DOCUMENTS, *PAGES]:
        blocks = BLOCK.findall(page.read_text())
        (tmp_path / f"{page.parent.name}-{page.stem}.py").write_text("\n".join(blocks))
    checked = subprocess.run(
        ["ruff", "check", "--isolated", "--no-cache", "--select", "F821", "--output-format", "concise", tmp_path],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_page_of_a_framework_is_in_the_table() -> None:
    table = (ROOT / "docs" / "frameworks.md").read_text()
    assert {page.name for page in PAGES} == set(re.findall(r"integrations/([\w-]+\.md)", table))


def test_the_readme_is_for_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", [*DOCUMENTS, *PAGES], ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    assert [target for target in links(page.read_text()) if not (page.parent / target).exists()] == []


def test_every_path_on_the_page_of_the_architecture_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"`((?:agent_tools|docker|docs|scripts|tests)/[\w./-]*)`", text))
    assert len(paths) > 40
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    named = re.findall(r"`(\w+)`, `(agent_tools/[\w./]+)`", text)
    assert [name for name, path in named if f"class {name}" not in (ROOT / path).read_text()] == []
    assert len(text.splitlines()) <= 250


def test_limits_are_what_the_settings_say() -> None:
    for page in limits.PAGES:
        text = page.read_text()
        assert limits.rendered(text) == text, "write it anew: .venv/bin/python -m supply.limits"


def test_the_metrics_of_the_page_are_those_of_the_gateway() -> None:
    told = set(re.findall(r"^\| `(agent_tools_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    types = re.findall(r"^# TYPE (\w+) (\w+)", Metrics(dict).text().decode(), re.MULTILINE)
    assert told == {name for name, _ in types if name.startswith("agent_tools_") and not name.endswith("_created")}
