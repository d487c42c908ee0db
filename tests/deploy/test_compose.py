"""The compose file: read by compose's own schema, and its gateway run as it says, on the engine of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from agent_tools.engines.docker import gateway_image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.gateway.config import GatewayConfig, read_config
from agent_tools.settings import gateway_options
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.deploy.conftest import debian_program
from tests.gateway.asking import CODE_TOOL, INCLUDE, code, outputs, until
from tests.gateway.postgresql import postgresql

__all__ = ["postgresql"]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
GATEWAY = COMPOSE["services"]["gateway"]
SCHEMA_WHEEL = "docker-compose==1.29.2"  # the last one in Python, which carries the schema
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
USER = 10_002  # docker/gateway.dockerfile has it
GIVEN = {"POSTGRES_PASSWORD": "secret", "DOCKER_GROUP": "999"}
PATIENCE = 120  # seconds for whatever a gateway is asked that has just started, on a machine that is busy


def filled(value: Any, given: dict[str, str]) -> Any:
    """A value of the file with its variables, as compose fills them in."""
    if isinstance(value, dict):
        return {name: filled(each, given) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, given) for each in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        name, how, rest = found.groups()
        if given.get(name):
            return given[name]
        assert how == "-", f"{name} has to be given: {rest}"
        return str(rest)

    return VARIABLE.sub(fill, value)


def test_it_is_of_composes_schema(tmp_path: Path) -> None:
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(tmp_path)]
    import jsonschema  # here, since every worker would pay its grammars when it collects the tests

    subprocess.run([*uv, "--no-deps", SCHEMA_WHEEL], check=True, timeout=120)
    schema = json.loads((tmp_path / "compose" / "config" / "compose_spec.json").read_text())
    compose = jsonschema.Draft7Validator(schema)
    compose.validate(_nameless())
    with pytest.raises(jsonschema.ValidationError):
        compose.validate({"services": {"gateway": {**GATEWAY, "imagee": "x"}}})


COMPOSE_1 = "docker-compose python3-docker python3-dockerpty python3-docopt python3-dotenv python3-jsonschema"
COMPOSE_1 += " python3-requests python3-texttable python3-websocket python3-yaml libyaml-0-2 python3-cached-property"
COMPOSE_1 += " python3-distro python3-urllib3 python3-certifi python3-chardet python3-idna python3-pyrsistent"
COMPOSE_1 += " python3-attr python3-six python3-packaging python3-pkg-resources python3-setuptools python3-distutils"


def test_compose_reads_it_as_we_do(tmp_path: Path) -> None:
    policy = subprocess.run(
        ["apt-cache", "policy", "docker-compose"], capture_output=True, text=True, check=True
    ).stdout
    packages = COMPOSE_1.split() if "Candidate: 1." in policy else ["docker-compose"]
    compose = debian_program("docker-compose", *packages)
    text = (DEPLOY / "compose.yaml").read_text()
    if len(packages) > 1:  # version 1 knows no name
        text = text.replace("name: agent-tools\n", "", 1)
    (tmp_path / "compose.yaml").write_text(text)
    profiles = [f"--profile={profile}" for profile in ("ollama", "vllm", "metrics")]
    command = [compose, "-f", str(tmp_path / "compose.yaml"), *profiles, "config"]
    done = subprocess.run(command, env={**os.environ, **GIVEN}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]
    assert read["gateway"]["environment"] == filled(GATEWAY["environment"], GIVEN)
    assert set(read) == set(COMPOSE["services"])
    missing = {name: value for name, value in os.environ.items() if name not in GIVEN}
    done = subprocess.run([*command, "-q"], env=missing, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert "set it in .env" in done.stderr


def _nameless() -> Any:
    """The file without its name, which compose has read for some years, and this schema does not know."""
    return filled({name: value for name, value in COMPOSE.items() if name != "name"}, GIVEN)


def test_its_settings_are_settings_of_the_gateway() -> None:
    config = read_config(gateway_options(filled(GATEWAY["environment"], GIVEN)))
    assert config.metrics_port == 9090
    assert config.database_url == "postgresql+psycopg://gateway:secret@postgres/gateway"
    assert config.upstream == "http://ollama:11434/v1"
    stop = int(GATEWAY["stop_grace_period"].rstrip("s"))
    assert stop > config.shutdown_grace + 5 + config.park_timeout + 10


def test_what_it_mounts_and_names_is_there() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for volume in filled(service.get("volumes", []), GIVEN):
            source = volume.split(":")[0]
            assert source.startswith("/") or source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), volume
        assert set(service.get("depends_on", ())) <= set(services)
    (target,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    assert target == f"gateway:{GATEWAY['environment']['AGENT_TOOLS_GATEWAY_METRICS_PORT']}"
    for line in (DEPLOY / "env.example").read_text().splitlines():
        if line and not line.startswith("#"):
            assert f"${{{line.partition('=')[0]}" in (DEPLOY / "compose.yaml").read_text(), line


MOVING = re.compile(r"(?:latest|main|edge|nightly)?(?:-\w+)?")


def test_images_of_others_have_a_version_and_the_docs_say_which_compose_reads_them() -> None:
    files = [COMPOSE, yaml.safe_load((DEPLOY / "open-webui.yaml").read_text())]
    services = {name: each for file in files for name, each in file["services"].items() if "image" in each}
    assert {"postgres", "ollama", "vllm", "prometheus", "open-webui"} < set(services)
    for name, service in services.items():
        tag = filled(service["image"], GIVEN).rpartition("/")[2].partition(":")[2]
        assert "build" in service or not MOVING.fullmatch(tag), name
    least = re.search(r"needs Compose ([\d.]+) or later", (DEPLOY / "compose.yaml").read_text())
    assert least
    assert f"Docker Compose {least[1]}" in " ".join((DEPLOY.parent / "docs" / "deploy.md").read_text().split())


def test_sandboxes_folders_have_the_same_path_for_the_engine() -> None:
    shared = [
        source for source, target in (each.split(":") for each in filled(GATEWAY["volumes"], GIVEN)) if source == target
    ]
    seen = filled(GATEWAY["environment"], GIVEN)
    for name in ("AGENT_TOOLS_GATEWAY_DATA_DIR", "AGENT_TOOLS_RUN_DIR"):
        assert any(Path(seen[name]).is_relative_to(folder) for folder in shared), name


@pytest.fixture
def state() -> Iterator[Path]:
    """The folder that gateway and engine share; its path is short, since sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    if os.getuid() == 0:
        os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Running:
    """The service `gateway`, run as the file says but in the host's network, where the scripted upstream is."""

    def __init__(self, engine: DockerEngine, tag: str, state: Path, **environment: str) -> None:
        service = filled(GATEWAY, {**GIVEN, "STATE": str(state)})
        volumes = [*service["volumes"], *(f"{path}:{path}" for path in (environment.pop("also", ""),) if path)]
        self._client = engine.connection.new_client(timeout=120)
        self.container = self._client.containers.run(
            tag,
            detach=True,
            network_mode="host",
            user=f"{USER}:{USER}" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}",
            pid_mode=service["pid"],
            cap_drop=service["cap_drop"],
            security_opt=service["security_opt"],
            read_only=service["read_only"],
            tmpfs=dict.fromkeys(service["tmpfs"], ""),
            group_add=[str(os.stat("/var/run/docker.sock").st_gid)],
            volumes=volumes,
            environment={**service["environment"], **environment},
        )

    def do(self, *command: str) -> str:
        done = self.container.exec_run(list(command))
        assert done.exit_code == 0, done.output.decode()
        return str(done.output.decode())

    def await_health(self, deadline: float) -> None:
        while self._health() != "healthy":
            assert time.monotonic() < deadline, self.container.logs().decode()
            assert self.container.status in ("created", "running"), self.container.logs().decode()
            time.sleep(0.2)

    def _health(self) -> str:
        self.container.reload()
        return str(self.container.attrs["State"].get("Health", {}).get("Status"))

    def sandboxes(self, below: Path) -> list[str]:
        """Those that have something of this folder mounted."""
        found = self._client.containers.list(all=True, ignore_removed=True)
        return [
            each.name
            for each in found
            if any(str(below) in str(mount) for mount in each.attrs["Mounts"]) and each.id != self.container.id
        ]

    def close(self) -> None:
        self.container.remove(force=True)
        self._client.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.docker
@pytest.mark.timeout(900)  # it builds an image
def test_the_gateway_runs_in_its_image_with_postgresql(
    docker_engine: DockerEngine, state: Path, postgresql: str
) -> None:
    tag = gateway_image.build(docker_engine, f"{gateway_image.REPOSITORY}:test", compiled="agent_tools")
    port, second = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        stack.callback(docker_engine.remove_image, tag)
        upstream = stack.enter_context(
            ScriptedServer({"m": [code("open('a.txt', 'w').write('x'); 6 * 7"), ScriptedReply("It is 42.")]})
        )
        running = Running(
            docker_engine,
            tag,
            state,
            also=postgresql.partition("host=")[2],
            AGENT_TOOLS_GATEWAY_UPSTREAM=upstream.base_url,
            AGENT_TOOLS_GATEWAY_DATABASE=postgresql,
            AGENT_TOOLS_GATEWAY_HOST="127.0.0.1",
            AGENT_TOOLS_GATEWAY_PORT=str(port),
            AGENT_TOOLS_GATEWAY_METRICS_HOST="127.0.0.1",
            AGENT_TOOLS_GATEWAY_METRICS_PORT=str(second),
            AGENT_TOOLS_GATEWAY_POOL="0",
        )
        stack.callback(running.close)
        running.await_health(time.monotonic() + PATIENCE)
        key = running.do("agent-tools", "keys", "add", "alice").strip()
        body = {"model": "m", "input": "Go.", "tools": [CODE_TOOL], "include": INCLUDE}
        http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=PATIENCE))
        assert http.get("models").status_code == 401
        http.headers["Authorization"] = f"Bearer {key}"
        deadline = time.monotonic() + PATIENCE
        while http.get("models").status_code == 401:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        answer = http.post("responses", json=body)
        assert answer.status_code == 200, (answer.text, running.container.logs().decode())
        (call,) = outputs(answer.json())
        assert call["outputs"][-1]["logs"] == "42"
        assert (state / "data" / "containers" / call["container_id"] / "a.txt").read_text() == "x"
        assert len(running.sandboxes(state)) == 1
        ready = httpx.get(f"http://127.0.0.1:{second}/ready", timeout=PATIENCE).json()
        assert ready == {"status": "ok", "engine": True, "database": True, "upstream": True}
        metrics = httpx.get(f"http://127.0.0.1:{second}/metrics", timeout=PATIENCE).text
        assert 'agent_tools_key_requests_total{end="2xx",key="alice"}' in metrics
        assert running.do("id", "-u").strip() != "0"
        running.container.stop(timeout=int(GATEWAY["stop_grace_period"].rstrip("s")))
        log = running.container.logs().decode()
        assert running.container.wait()["StatusCode"] in (0, 128 + signal.SIGTERM), log
        assert "Application shutdown complete" in log
        assert "/metrics" not in log
        assert "/v1/responses" in log
        until(lambda: not running.sandboxes(state))
        assert key not in log


def test_the_image_knows_every_engine_that_the_package_has() -> None:
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    table = re.search(r"\[project.entry-points.\"agent_tools.engines\"\]\n(.*?)\n\n", project, re.DOTALL)
    assert table
    lines = table[1].replace('"', "").splitlines()
    assert len(lines) > 1
    text = (DEPLOY.parent / "docker" / "gateway.dockerfile").read_text()
    assert all(f"'{line}'" in text for line in lines)


def test_the_image_needs_a_key_unless_it_is_told_otherwise() -> None:
    text = (DEPLOY.parent / "docker" / "gateway.dockerfile").read_text()
    environment = dict(re.findall(r"(AGENT_TOOLS_GATEWAY_\w+)=(\S+)", text))
    config: GatewayConfig = read_config({**gateway_options(environment), "upstream": "http://u/v1"})
    assert (config.host, config.named_keys) == ("0.0.0.0", True)
    assert f"USER {USER}:{USER}" in text
