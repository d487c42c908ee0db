"""nginx with the configuration of deploy/, below a path: the page, streams, uploads, and what stays inside."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from agent_tools.testing import ScriptedReply
from tests.deploy.conftest import debian_program
from tests.gateway.asking import KEYS, until
from tests.gateway.conftest import Gateway, NewGateway

ROOT = Path(__file__).resolve().parents[2]
MAIN = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; include {folder}/agent-tools.conf; }}
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def proxied(new_gateway: NewGateway, work_dir: Path) -> Iterator[tuple[Gateway, str, threading.Event]]:
    """A gateway, its URL through nginx, and an event for which its model's answer waits midway."""
    go_on = threading.Event()
    answer = ScriptedReply(text="Half of it, and the rest.", piece=2, wait_midway=go_on)
    gateway = new_gateway({"m": [answer]}, api_keys=KEYS, root_path="/code")
    port = free_port()
    given = (ROOT / "deploy" / "nginx.conf").read_text()
    (work_dir / "agent-tools.conf").write_text(given.replace("http://127.0.0.1:8080", gateway.url))
    (work_dir / "nginx.conf").write_text(MAIN.format(folder=work_dir, port=port))
    nginx = debian_program("nginx", "nginx")
    command = [nginx, "-c", str(work_dir / "nginx.conf"), "-p", str(work_dir), "-e", "stderr"]
    with open(work_dir / "log", "wb") as log, subprocess.Popen(command, stderr=log) as process:
        url = f"http://127.0.0.1:{port}/code"
        try:
            until(lambda: process.poll() is not None or _answers(url))
            assert process.poll() is None, (work_dir / "log").read_text()
            yield gateway, url, go_on
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_the_page_has_its_style_and_its_script(proxied: tuple[Gateway, str, threading.Event]) -> None:
    _, url, _ = proxied
    page = httpx.get(f"{url}/").text
    found = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len(found) >= 3
    script = httpx.get(f"{url}/page/page.js").text
    found += [f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', script)]
    assert [httpx.get(f"{url}/{path}").status_code for path in found] == [200] * len(found)
    assert not re.search(r"[\"'`]/(page|v1)\b", script)


def test_a_stream_arrives_piece_by_piece(proxied: tuple[Gateway, str, threading.Event]) -> None:
    _, url, go_on = proxied
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0]) as client:
        told = ""
        for event in client.responses.create(model="m", input="Go.", stream=True):
            if event.type == "response.output_text.delta":
                told += event.delta
                go_on.set()  # the model goes on only when its first words have come
    assert told == "Half of it, and the rest."


def test_a_websocket_goes_through(proxied: tuple[Gateway, str, threading.Event]) -> None:
    _, url, go_on = proxied
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0]) as client, client.responses.connect() as connection:
        connection.response.create(model="m", input="Go.")
        told = ""
        for event in connection:
            if event.type == "response.output_text.delta":
                told += event.delta
                go_on.set()
            elif event.type == "response.completed":
                break
    assert told == "Half of it, and the rest."


def test_an_upload_may_be_larger_than_what_nginx_allows_by_itself(
    proxied: tuple[Gateway, str, threading.Event],
) -> None:
    gateway, url, _ = proxied
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0]) as client:
        made = client.files.create(file=("a.bin", b"a" * 3_000_000), purpose="user_data")
        assert client.files.content(made.id).read() == b"a" * 3_000_000
    (allowed,) = re.findall(r"client_max_body_size (\d+)m;", (ROOT / "deploy" / "nginx.conf").read_text())
    assert int(allowed) << 20 > gateway.services.config.max_upload_bytes


def test_keys_are_needed_through_it_and_what_is_for_operators_stays_inside(
    proxied: tuple[Gateway, str, threading.Event],
) -> None:
    _, url, _ = proxied
    assert httpx.get(f"{url}/v1/models").status_code == 401
    for path in ("metrics", "ready"):
        assert httpx.get(f"{url}/{path}").status_code == 403
