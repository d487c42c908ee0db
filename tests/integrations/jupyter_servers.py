"""Clients of Jupyter's REST and websocket API, each unchanged, of a server with kernels in sandboxes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import signal
import sys
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor
from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo
from jupyter_kernel_client import JupyterKernelClient
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.websocket import websocket_connect

from tests.integrations.left_behind import await_gone, containers
from tests.integrations.served import Served, serving

EXPECTED: dict[str, str] = {}
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server for all tests that do not kill it."""
    with serving("--set", f"transport={request.config.getoption('--transport')}") as served:
        yield served
    await_gone(served.process.pid)


def open_webui() -> Any:
    """Open WebUI's own file; a name each of two of its modules, which need all the rest, is the standard library's."""
    package = Path(str(importlib.metadata.distribution("open-webui").locate_file("open_webui")))
    stands_in: dict[str, dict[str, Any]] = {
        "open_webui": {},
        "open_webui.utils": {},
        "open_webui.env": {"AIOHTTP_CLIENT_ALLOW_REDIRECTS": False},
        "open_webui.utils.json_codec": {"JSONCodec": json},
    }
    for name, content in stands_in.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    spec = importlib.util.spec_from_file_location("code_interpreter", package / "utils" / "code_interpreter.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


async def test_open_webui_runs_code(server: Served) -> None:
    run = open_webui().execute_code_jupyter
    answer = await run(server.url, "print(6 * 7)\n'result'", server.token)
    assert (answer["stdout"], answer["stderr"], answer["result"]) == ("42", "", "'result'")
    assert (await run(server.url, PLOT, server.token))["result"].startswith("data:image/png;base64,")
    assert "ZeroDivisionError" in (await run(server.url, "1/0", server.token))["stderr"]
    assert "timed out" in (await run(server.url, "while True: pass", server.token, timeout=3))["stderr"]


async def test_autogen_runs_code_with_state(server: Served, tmp_path: Path) -> None:
    info = JupyterConnectionInfo(host="127.0.0.1", use_https=False, port=server.port, token=server.token)
    async with DockerJupyterCodeExecutor(info, timeout=30, output_dir=tmp_path) as executor:

        async def run(code: str) -> Any:
            return await executor.execute_code_blocks([CodeBlock(code=code, language="python")], CancellationToken())

        assert (await run("x = 6; print(x)")).output.strip() == "6"
        assert (await run("x * 7")).output.strip() == "42"
        assert len((await run(PLOT)).output_files) == 1
        failed = await run("1/0")
        assert failed.exit_code != 0
        assert "ZeroDivisionError" in failed.output
        await executor.restart()
        assert "NameError" in (await run("x")).output


def test_jupyter_kernel_client_runs_code(server: Served) -> None:
    with JupyterKernelClient(server_url=server.url, token=server.token) as client:
        assert client.execute("x = 6; print(x * 7)")["outputs"][0]["text"] == "42\n"
        assert client.execute("1/0")["status"] == "error"
        client.interrupt()
        client.restart()
        assert client.execute("x")["status"] == "error"


def test_each_kernel_has_a_folder_of_its_own(server: Served) -> None:
    listed = []
    for _ in range(2):
        with JupyterKernelClient(server_url=server.url, token=server.token) as client:
            client.execute("open('mine', 'w').close()")
            outputs = client.execute("import os; print(sorted(os.listdir('.')), os.getuid() != 0)")["outputs"]
            listed.append(outputs[0]["text"])
    assert listed == ["['mine'] True\n"] * 2


def test_only_our_kernel_is_offered_and_only_to_whom_has_the_token(server: Served) -> None:
    assert server.status("/api/kernelspecs") == 200
    assert server.status("/api/kernelspecs", "wrong") == 401
    for path in ("/api/contents", "/api/terminals", "/api/kernels"):
        assert server.status(path) in (403, 404)


def test_clients_see_no_option_and_kernels_have_them() -> None:
    headers = {"example.com": {"Authorization": "Bearer s3cret"}}
    network = json.dumps({"allow": ["example.com"], "headers": headers})
    with serving("--set", f"network={network}", "--set", 'env={"A": "s3cret"}') as served:
        for path in ("/api/kernelspecs", "/api/kernelspecs/python3"):
            with urllib.request.urlopen(f"{served.url}{path}?token={served.token}") as answer:
                body = answer.read().decode()
            assert "display_name" in body
            assert "s3cret" not in body
        with JupyterKernelClient(server_url=served.url, token=served.token) as client:
            outputs = client.execute("import os; print(os.environ['A'], 'HTTPS_PROXY' in os.environ)")["outputs"]
            assert outputs[0]["text"] == "s3cret True\n"
    await_gone(served.process.pid)


async def test_its_log_has_no_token(tmp_path: Path) -> None:
    with serving(log=tmp_path / "log") as served:
        made = await AsyncHTTPClient().fetch(f"{served.url}/api/kernels?token={served.token}", method="POST", body="{}")
        kernel = f"/api/kernels/{json.loads(made.body)['id']}"
        for token in (served.token, f"{served.token}-wrong"):
            for path in ("/api/kernelspecs", "/nothing", kernel, f"{kernel}/"):
                served.status(path, token)
            with contextlib.suppress(HTTPClientError):
                socket = await websocket_connect(f"ws://127.0.0.1:{served.port}{kernel}/channels?token={token}")
                socket.close()
    await_gone(served.process.pid)
    log = (tmp_path / "log").read_text()
    assert f"101 GET {kernel}/channels" in log
    assert served.token not in log


def test_more_kernels_than_may_be_are_refused() -> None:
    with serving("--max-kernels", "1") as served:
        request = urllib.request.Request(f"{served.url}/api/kernels?token={served.token}", b"{}")
        urllib.request.urlopen(request).close()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request)
    await_gone(served.process.pid)


def test_a_server_killed_in_the_middle_leaves_nothing() -> None:
    with serving() as served:
        request = urllib.request.Request(f"{served.url}/api/kernels?token={served.token}", b"{}")
        urllib.request.urlopen(request).close()
        assert containers(served.process.pid)
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
        await_gone(served.process.pid)
