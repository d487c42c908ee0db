"""The flavour `agent` on an egress allowlist: curl, git, pip and libraries reach what is listed, unchanged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import certifi
import pytest

from agent_tools import CommandResult, settings
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.flavours.git_server import GitServer
from tests.unit.runtime.egress.network import certificate

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
PAGE = "https://pypi.org/simple/xxhash/"
# The server is on this machine's own loopback, which programs do not ask a proxy for.
THROUGH_THE_PROXY = {"NO_PROXY": "", "no_proxy": ""}
PATIENCE = 120.0  # seconds

MODULE = {
    "pyproject.toml": '[project]\nname = "greeting"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["greeting"]\n',
    "greeting.py": "TEXT = 'hello'\n",
    "table.csv": "a,b\n1,2\n",
}


@pytest.fixture(scope="module")
def server(scratch: object) -> Iterator[GitServer]:
    """A server of this machine with a repository, in TLS, whose authority the sandboxes are told of."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context, authority = certificate(folder, "localhost")
        bundle = folder / "all.pem"
        bundle.write_text(authority.read_text() + Path(settings.ca_bundle() or certifi.where()).read_text())
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("PIP_CERT", str(bundle))
        yield stack.enter_context(GitServer(folder / "served", context, MODULE))


@pytest.fixture(scope="module", params=["sockets", "stdio"])
def tool(request: pytest.FixtureRequest, docker_runtime: Runtime, server: GitServer) -> Iterator[CodeInterpreter]:
    """A tool on each transport, with the index and the server on its list."""
    network = {"allow": ["pypi", f"localhost:{server.port}"], "private": ["127.0.0.0/8", "203.0.113.0/24"]}
    with ExitStack() as stack:
        path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        cfg = {"work_dir": str(path), "flavour": "agent", "transport": request.param, "network": network}
        yield stack.enter_context(CodeInterpreter(cfg, runtime=docker_runtime))


@pytest.fixture
def run(tool: CodeInterpreter) -> Callable[[str], CommandResult]:
    """Runs a line of a shell."""
    return lambda line: tool.as_sandbox.run_command(line, env=THROUGH_THE_PROXY, timeout=PATIENCE)


def output(result: CommandResult) -> str:
    assert result.exit_code == 0, result
    return result.stdout.decode()


Run = Callable[[str], CommandResult]


def test_curl_reaches_what_is_listed(run: Run, server: GitServer) -> None:
    assert output(run(f"curl -sSo /dev/null -w '%{{http_code}}' {PAGE}")) == "200"
    assert output(run(f"curl -fsS {server.url}/table.csv")) == MODULE["table.csv"]


def test_curl_reaches_nothing_else(run: Run) -> None:
    refused = run("curl -sS https://example.org/")
    assert refused.exit_code == 56
    assert b"403" in refused.stderr


def test_git_clones_and_pushes(run: Run, server: GitServer) -> None:
    first = output(run(f"git clone -q --depth 1 {server.url}/greeting.git cloned && cat cloned/greeting.py"))
    assert first == MODULE["greeting.py"]
    commit = "cd cloned && echo more > more && git add more && git -c user.name=a -c user.email=a@b.c commit -qm more"
    output(run(f"{commit} && git push -q --force origin HEAD:pushed 2>&1"))
    output(run(f"git clone -q --branch pushed {server.url}/greeting.git again && cmp cloned/more again/more"))
    assert "refs/heads/pushed" in output(run(f"git ls-remote {server.url}/greeting.git; rm -rf cloned again"))


def test_git_reaches_nothing_else(run: Run) -> None:
    refused = run("git clone -q https://example.org/a.git")
    assert refused.exit_code == 128
    assert b"403" in refused.stderr


def test_pip_installs_from_the_index_and_from_a_repository(run: Run, server: GitServer) -> None:
    output(run("pip install -q xxhash==3.6.0 2>&1"))
    assert output(run("python3 -c 'import xxhash; print(xxhash.VERSION)'")) == "3.6.0\n"
    output(run(f"pip install -q git+{server.url}/greeting.git 2>&1"))
    assert output(run("python3 -c 'import greeting; print(greeting.TEXT)'")) == "hello\n"


LIBRARIES = {
    "urllib": f"import urllib.request; print(urllib.request.urlopen('{PAGE}').status)",
    "requests": f"import requests; print(requests.get('{PAGE}').status_code)",
    "httpx": f"import httpx; print(httpx.get('{PAGE}').status_code)",
    "pandas": f"import pandas; print(200 if len(pandas.read_csv('{PAGE}', sep='\\0', engine='python')) else 0)",
}


@pytest.mark.parametrize("code", LIBRARIES.values(), ids=LIBRARIES.keys())
def test_a_library_works_in_the_kernel(tool: CodeInterpreter, code: str) -> None:
    if "httpx" in code:
        assert tool.run("%pip install -q httpx", timeout=PATIENCE).ok
    execution = tool.run({"code": code}, timeout=PATIENCE)
    assert execution.stdout == "200\n", execution
    assert {(each.port, each.reason) for each in execution.connections if each.host == "pypi.org"} == {(443, "")}


def test_a_table_is_read_from_the_server(tool: CodeInterpreter, server: GitServer) -> None:
    code = f"import os, pandas\nos.environ.update({THROUGH_THE_PROXY})\n"
    code += f"print(pandas.read_csv('{server.url}/table.csv').b[0])"
    execution = tool.run({"code": code}, timeout=PATIENCE)
    assert execution.stdout == "2\n", execution
