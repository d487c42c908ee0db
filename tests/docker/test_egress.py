"""An egress allowlist in real sandboxes: what models do works unchanged, and 60 ways around it stay closed."""

from __future__ import annotations

import ast
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import ToolServiceError
from agent_tools.guest.kernel.next_steps import LISTED_ONLY
from agent_tools.machine.owner import same_host
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.egress_attacks import ATTACKS, PRELUDE

pytestmark = pytest.mark.docker
TRANSPORTS = ["sockets", "stdio"]
# Where a transparent proxy stands between this machine and the index, its names have addresses that are reserved.
INDEX = {"allow": ["pypi"], "private": ["203.0.113.0/24"]}
PATIENCE = 20.0  # seconds
PAGE = "https://pypi.org/simple/xxhash/"


class Ear:
    """A server that keeps all it hears, on every address of the host."""

    def __init__(self) -> None:
        self.heard = b""
        self.connections = 0
        self._listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            with end:
                self.connections += 1
                end.settimeout(PATIENCE)
                try:
                    while data := end.recv(65536):
                        self.heard += data
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(scope="module")
def forbidden() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture(scope="module")
def listed() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture(scope="module", params=TRANSPORTS)
def connected(
    request: pytest.FixtureRequest, docker_runtime: Runtime, listed: Ear, forbidden: Ear
) -> Iterator[CodeInterpreter]:
    """A tool on each transport, with the index and one port of the host's own loopback on its list."""
    network = {"allow": ["pypi", f"localhost:{listed.port}"], "private": ["127.0.0.0/8", "203.0.113.0/24"]}
    with ExitStack() as stack:
        path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        cfg = {"work_dir": str(path), "transport": request.param, "network": network}
        tool = stack.enter_context(CodeInterpreter(cfg, runtime=docker_runtime))
        tool.run(f"{PRELUDE}\nS, T = {forbidden.port}, {listed.port}")
        yield tool


def printed(tool: CodeInterpreter, code: str, timeout: float = 60) -> str:
    execution = tool.run({"code": code}, timeout=timeout)
    assert execution.ok, execution.error
    return execution.stdout


# -- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "answer"), ATTACKS.values(), ids=ATTACKS.keys())
def test_no_attack_reaches_anything(
    connected: CodeInterpreter, forbidden: Ear, listed: Ear, code: str, answer: bytes | tuple[bytes, ...]
) -> None:
    back = ast.literal_eval(printed(connected, f"print({code})"))
    assert back.startswith(answer), back
    assert (forbidden.connections, listed.heard) == (0, b"")


def test_there_are_many_attacks() -> None:
    assert len(ATTACKS) >= 40


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_listed_name_that_lies_inside_is_refused(
    new_tool: Callable[..., CodeInterpreter], listed: Ear, transport: str
) -> None:
    tool = new_tool(transport=transport, network={"allow": [f"localhost:{listed.port}"]})
    before = listed.connections
    back = printed(tool, f"{PRELUDE}\nprint(ask('localhost:{listed.port}', hello('localhost')))")
    assert "403 localhost has a private or reserved address" in back
    assert listed.connections == before


def test_a_redirect_to_where_it_may_not_go_ends_there(new_tool: Callable[..., CodeInterpreter], forbidden: Ear) -> None:
    from tests.unit.runtime.egress.network import Server

    answer = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{forbidden.port}/\r\nContent-Length: 0\r\n\r\n"
    server = Server(answer=answer.encode())
    try:
        tool = new_tool(network={"allow": [f"127.0.0.1:{server.port}"]})
        code = f"import os\nos.environ.pop('no_proxy'), os.environ.pop('NO_PROXY')\nimport requests\nprint(requests.get('http://127.0.0.1:{server.port}/').text)"
        assert f"127.0.0.1:{forbidden.port} is not on this sandbox's list" in printed(tool, code)
    finally:
        server.close()
    assert forbidden.connections == 0


def test_a_flood_of_connections_harms_nobody(connected: CodeInterpreter) -> None:
    flood = """
many = []
for _ in range(400):
    try:
        many.append(socket.create_connection(('127.0.0.1', 3128), 1))
        many[-1].sendall(b'GET http')
    except OSError:
        pass
print(len(many) > 30)
for each in many: each.close()
"""
    assert printed(connected, flood) == "True\n"
    assert printed(connected, "import time; time.sleep(1); print(ask('example.org:443')[:12])") == "b'HTTP/1.1 403'\n"


def test_code_that_ends_the_proxy_is_without_a_network_until_the_next_code(
    new_tool: Callable[..., CodeInterpreter],
) -> None:
    tool = new_tool(network=INDEX)
    end = """
import os, signal, socket
for pid in filter(str.isdigit, os.listdir('/proc')):
    if int(pid) not in (1, os.getpid()):
        os.kill(int(pid), signal.SIGKILL)
try:
    socket.create_server(('127.0.0.1', 3128))
except OSError as exc:
    print(exc.errno)
"""
    assert printed(tool, end) == "98\n"
    assert tool.run("print('alive')").stdout == "alive\n"
    assert printed(tool, f"import requests; print(requests.get('{PAGE}').status_code)") == "200\n"


HOST = """
import time
from agent_tools.tools import CodeInterpreter
tool = CodeInterpreter({{"work_dir": {work_dir!r}, "transport": {transport!r}, "network": {network!r}}})
tool.call("import socket; kept = socket.create_connection(('127.0.0.1', 3128)); kept.send(b'CONN')")
print(tool.sandbox.id, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_host_leaves_nothing(docker_engine: DockerEngine, work_dir: Path, transport: str) -> None:
    script = HOST.format(work_dir=str(work_dir), transport=transport, network=INDEX)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        id_ = host.stdout.readline().strip()
        assert len(id_) == 64
        host.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while any(sandbox.id == id_ for sandbox, _ in docker_engine.strays(same_host())):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


# -- what models do ---------------------------------------------------------------------------------------------------

CLIENTS = {
    "requests": f"import requests; print(requests.get('{PAGE}').status_code)",
    "urllib": f"import urllib.request; print(urllib.request.urlopen('{PAGE}').status)",
    "urllib3 through its own environment": f"import requests; print(requests.Session().head('{PAGE}').status_code)",
    "pandas": f"import pandas; print(200 if len(pandas.read_csv('{PAGE}', sep='\\0', engine='python')) else 0)",
    "another process": (
        f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', \"import urllib.request; "
        f"print(urllib.request.urlopen('{PAGE}').status)\"], capture_output=True, text=True).stdout.strip())"
    ),
}


@pytest.mark.parametrize("code", CLIENTS.values(), ids=CLIENTS.keys())
def test_a_client_of_the_network_works_unchanged(connected: CodeInterpreter, code: str) -> None:
    execution = connected.run({"code": code}, timeout=60)
    assert execution.stdout == "200\n", execution
    found = [each for each in execution.connections if each.host == "pypi.org"]
    assert {(each.port, each.reason) for each in found} == {(443, "")}
    assert sum(each.bytes_in for each in found) > 1_000
    assert sum(each.bytes_out for each in found) > 100


def test_a_refused_connection_is_told_to_the_code_and_in_the_execution(connected: CodeInterpreter) -> None:
    execution = connected.run("import requests; requests.get('https://example.org/')")
    assert execution.error
    assert "network={'allow': ['example.org']}" in execution.error.text
    refused = [each for each in execution.connections if each.status == "refused"]
    assert [(each.host, each.port, each.reason) for each in refused] == [("example.org", 443, "not listed")]


def test_a_client_that_goes_past_the_list_is_told_of_the_proxy(connected: CodeInterpreter) -> None:
    execution = connected.run("import socket; socket.create_connection(('pypi.org', 443))")
    assert execution.error
    assert execution.error.text.rstrip().endswith(LISTED_ONLY)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_packages_are_installed_for_the_sandbox_alone(new_tool: Callable[..., CodeInterpreter], transport: str) -> None:
    tool = new_tool(transport=transport, network=INDEX)
    told = tool.run("%pip install -q xxhash==3.6.0 httpx", timeout=120)
    assert told.ok, told.error
    assert printed(tool, "import xxhash; print(xxhash.xxh64(b'a').hexdigest())") == "d24ec4f1a98c6e5b\n"
    assert printed(tool, f"import httpx; print(httpx.get('{PAGE}').status_code)") == "200\n"
    assert "xxhash" in printed(tool, "!pip list 2>/dev/null | grep xxhash")
    assert printed(tool, "!python3 -c 'import xxhash; print(xxhash.VERSION)'") == "3.6.0\n"
    assert tool.run("!python -m pip install -q 'tqdm<4.67'", timeout=120).ok
    assert printed(tool, "!python -c 'import tqdm; print(tqdm.__version__[:4])'") == "4.66\n"
    tool.restart()
    assert printed(tool, "import xxhash, tqdm; print(tqdm.__file__.startswith('/opt/session/'))") == "True\n"
    tool.close()
    assert not tool.run("import xxhash").ok


def test_files_are_executed_from_the_places_that_the_pages_name(connected: CodeInterpreter) -> None:
    code = """
import os, shutil, subprocess
memory = os.memfd_create('copy', 0)
os.write(memory, open('/bin/true', 'rb').read())
folders = ('/tmp', '/var/tmp', os.path.expanduser('~'), '/dev/shm', '/opt/session', '/workspace')
for path in [*(shutil.copy('/bin/true', f'{folder}/copy') for folder in folders), f'/proc/self/fd/{memory}']:
    try:
        print(subprocess.run([path], pass_fds=[memory]).returncode)
    except OSError as exc:
        print(exc.errno)
os.unlink('/workspace/copy')
"""
    assert printed(connected, code) == "13\n13\n13\n13\n0\n0\n0\n"


def test_the_place_for_packages_is_bounded(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(network=INDEX, installed=4 << 20)
    code = "try: open('/opt/session/much', 'wb').write(bytes(8 << 20))\nexcept OSError as exc: print(exc.errno)"
    assert printed(tool, code) == "28\n"


def test_without_a_list_there_is_no_door_and_no_place(tool: CodeInterpreter) -> None:
    code = """
import os, shutil, socket, sys, importlib.util
print(socket.socket().connect_ex(('127.0.0.1', 3128)), os.path.exists('/opt/session'))
print([name for name in os.environ if 'PROXY' in name.upper() or 'CERT' in name or name.startswith('PIP')])
print(shutil.which('pip'), importlib.util.find_spec('pip').origin, [path for path in sys.path if '/opt/pip' in path])
"""
    assert printed(tool, code) == "111 False\n[]\n/opt/kernel/bin/pip /opt/no_pip/pip.py []\n"


def test_an_image_without_the_door_is_told_as_such(new_tool: Callable[..., CodeInterpreter]) -> None:
    with pytest.raises(ToolServiceError):
        new_tool(network={"allow": ["*"]}).call("1")


def test_a_secret_is_added_on_the_host_and_seen_nowhere(new_tool: Callable[..., CodeInterpreter]) -> None:
    secret = "Bearer 5ecret"
    network: dict[str, Any] = {**INDEX, "headers": {"pypi.org": {"Authorization": secret, "Accept": "text/html"}}}
    tool = new_tool(network=network)
    code = "import requests; r = requests.get('http://pypi.org/simple/xxhash/', headers={'Accept': 'x/y'})\n"
    execution = tool.run(code + "print(r.status_code, r.headers['content-type'])", timeout=60)
    assert execution.stdout.startswith("200 text/html"), execution
    assert [each.port for each in execution.connections] == [443]
    code = "import os, subprocess\nprint(os.environ, subprocess.run('cat /proc/*/environ /proc/*/cmdline', shell=True, "
    code += "capture_output=True).stdout)"
    assert "5ecret" not in printed(tool, code)


def test_a_second_sandbox_installs_from_the_hosts_cache(
    new_tool: Callable[..., CodeInterpreter], tmp_path: Path
) -> None:
    network = {**INDEX, "packages_cache": str(tmp_path / "cache")}
    fetched = []
    for name in ("first", "second"):
        tool = new_tool(network=network, work_dir=str(tmp_path / name))
        execution = tool.run("%pip install -q xxhash==3.6.0", timeout=120)
        assert execution.ok, execution.error
        files = [each for each in execution.connections if each.host == "files.pythonhosted.org"]
        fetched.append(sum(each.bytes_in for each in files))
        assert {each.reason for each in files} == {""}
        assert printed(tool, "import xxhash, os; print(xxhash.VERSION)") == "3.6.0\n"
    assert fetched[0] > 10_000
    assert fetched[1] == 0
