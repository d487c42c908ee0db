"""The Python in README.md and docs/: it can be read, what it imports is there, and one block runs as it stands."""

from __future__ import annotations

import ast
import asyncio
import importlib
import io
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agent_tools.mcp.clients import CLIENTS, UVX
from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.runtime import default_runtime

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")] + sorted(ROOT.glob("docs/*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(path.name, block) for path in DOCUMENTS for block in BLOCK.findall(path.read_text())]
MCP = next(block for name, block in BLOCKS if name == "mcp.md")
PAGES = sorted(ROOT.glob("docs/integrations/*.md"))
SANDBOX = next(block for _, block in BLOCKS if "AsyncSandbox() as" in block)


def parsed(block: str) -> ast.Module:
    return compile(block, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 7


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[name for name, _ in BLOCKS])
def test_a_block_can_be_read_and_has_what_it_imports(block: str) -> None:
    for node in ast.walk(parsed(block)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.docker
def test_the_sandbox_of_the_readme_runs_as_it_stands(docker_engine: DockerEngine) -> None:
    names: dict[str, Any] = {}
    asyncio.run(eval(compile(SANDBOX, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names))
    default_runtime().settle()
    assert names["execution"].value == 42
    assert (names["result"].exit_code, names["result"].stdout) == (0, b"2\n")
    with tarfile.open(fileobj=io.BytesIO(names["saved"].tar)) as tar:
        assert "data.csv" in {Path(name).name for name in tar.getnames()}


@pytest.mark.docker
def test_the_conversation_with_the_mcp_server_runs_as_it_stands(docker_engine: DockerEngine) -> None:
    names: dict[str, Any] = {}
    asyncio.run(eval(compile(MCP, "mcp.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names))
    assert names["answer"].structured_content["result"] == "21"
    assert names["file"].contents[0].text == "saved"


def test_the_configuration_of_clients_is_what_the_command_prints() -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs" / "mcp.md").read_text(), re.MULTILINE | re.DOTALL)
    assert shown.strip() == CLIENTS["claude-desktop"].written(UVX)
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


def test_every_page_of_a_framework_is_in_the_readme() -> None:
    assert {page.name for page in PAGES} == set(
        re.findall(r"docs/integrations/([\w-]+\.md)", (ROOT / "README.md").read_text())
    )
