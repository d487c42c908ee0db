"""nginx with the configuration of deploy/, below a path: the page, streams, uploads, and what stays inside."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from agent_tools.mcp import asgi_app
from agent_tools.testing import ScriptedReply
from tests.deploy.conftest import debian_program
from tests.gateway.asking import KEYS, beside, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.identity_provider import IdentityProvider
from tests.recorder import Answer, Recorder, Seen

ROOT = Path(__file__).resolve().parents[2]
MAIN = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off; {before}
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
    with nginx_before(gateway.url, work_dir) as url:
        yield gateway, url, go_on


@contextlib.contextmanager
def nginx_before(gateway: str, folder: Path, extra: str = "", in_location: str = "", before: str = "") -> Iterator[str]:
    """nginx with the configuration of deploy/ and more; yields the URL through it of the gateway at a URL."""
    port = free_port()
    given = (ROOT / "deploy" / "nginx.conf").read_text().replace("http://127.0.0.1:8080", gateway)
    given = given.replace("    proxy_http_version", f"    {in_location}\n    proxy_http_version", 1)
    (folder / "agent-tools.conf").write_text(f"{extra}\n{given}")
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, port=port, before=before))
    nginx = debian_program("nginx", "nginx")
    command = [nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stderr=log) as process:
        url = f"http://127.0.0.1:{port}/code"
        try:
            until(lambda: process.poll() is not None or _answers(url))
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code in (200, 401)
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
    for path in (
        "metrics",
        "ready",
        "code/metrics",
        "code/ready",
        "/metrics",
        "%6detrics",
        "x/../metrics",
        "code//ready",
    ):
        assert httpx.get(f"{url}/{path}").status_code == 403, path
    for path in (
        "metrics/",
        "code/code/metrics",
        "METRICS",
        "openai/metrics",
        "openai/v1/metrics",
        "metrics%00",
        "metrics;x",
    ):
        assert "agent_tools_" not in httpx.get(f"{url}/{path}").text, path


SIGNED_IN = {"Cookie": "_oauth2_proxy=signed-in"}
SPOOFED = (
    {"X-Auth-Request-User": "root", "X-Auth-Request-Email": "root@example.org"},
    {"X-Forwarded-User": "root", "X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"},
    {"X-Original-URL": "/oauth2/sign_in", "X-Rewrite-URL": "/oauth2/sign_in", "X-Forwarded-Uri": "/oauth2/sign_in"},
    {"Connection": "close, Authorization", "Authorization": f"Bearer {KEYS[0]}"},
)


def test_clients_of_mcp_find_the_identity_provider_through_it(new_gateway: NewGateway, work_dir: Path) -> None:
    with IdentityProvider() as provider:
        settings = {**provider.settings, "oidc_resource": "https://a.example/code"}
        gateway = new_gateway({}, **settings, mounts=[asgi_app.MOUNT])
        with nginx_before(gateway.url, work_dir) as url:
            challenge = httpx.post(f"{url}/mcp").headers["www-authenticate"]
            where = challenge.split('"')[1].replace("https://a.example", url.removesuffix("/code"))
            assert httpx.get(where).json()["resource"] == "https://a.example/code/mcp"


def signing_in(seen: Seen) -> Answer:
    """Answer as oauth2-proxy does whose upstream is `static://202`."""
    if seen.target != "/oauth2/auth":
        return Answer(b"Sign in", "text/html")
    return Answer(b"", status=202 if SIGNED_IN["Cookie"] in seen.headers.get("cookie", "") else 401)


def test_people_sign_in_before_the_page_and_share_one_key(new_gateway: NewGateway, work_dir: Path) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text="Half of it, and the rest.", piece=2)]}, api_keys=KEYS)
    key = f'proxy_set_header Authorization "Bearer {KEYS[0]}";'
    with Recorder(signing_in) as proxy:
        sso = (ROOT / "deploy" / "nginx-sso.conf").read_text()
        assert key.replace(KEYS[0], "KEY") in sso
        sso = sso.replace("http://127.0.0.1:4180", proxy.base_url.removesuffix("/v1"))
        with nginx_before(gateway.url, work_dir, sso, key) as url:
            page = httpx.get(f"{url}/", headers={"Accept": "text/html,*/*"})
            assert (page.status_code, page.headers["location"].partition("/oauth2")[2]) == (302, "/sign_in?rd=/code/")
            assert httpx.get(page.headers["location"]).text == "Sign in"
            assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEYS[0]}"}).status_code == 401
            assert httpx.get(f"{url.removesuffix('/code')}/oauth2/auth", headers=SIGNED_IN).status_code == 404
            assert "agent_tools" in httpx.get(f"{url}/", headers=SIGNED_IN).text
            file = {"file": ("a.bin", b"a" * 3_000_000), "purpose": (None, "user_data")}
            assert httpx.post(f"{url}/v1/files", files=file, headers=SIGNED_IN).status_code == 200
            others_key = {"api-key": KEYS[1], "x-api-key": KEYS[1], "X-Access-Token": KEYS[1], "X-User-Id": "root"}
            assert len(httpx.get(f"{url}/v1/files", headers={**SIGNED_IN, **others_key}).json()["data"]) == 1
            for spoofed in SPOOFED:
                assert httpx.get(f"{url}/v1/files", headers=spoofed).status_code == 401, spoofed
            asked = {"model": "m", "input": "Go.", "stream": True}
            answer = httpx.post(f"{url}/v1/responses", json=asked, headers={**SIGNED_IN, "Authorization": "Bearer own"})
            assert "Half of it, and the rest." in answer.text
        assert not any(seen.body for seen in proxy.seen)


def test_all_requests_of_a_key_go_to_one_of_several_gateways_and_to_another_when_it_ends(
    new_gateway: NewGateway, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = new_gateway({}, api_keys=KEYS)
    both = (one, beside(new_gateway, one, api_keys=KEYS))
    upstream = (ROOT / "deploy" / "nginx-several.conf").read_text()
    answered: list[int] = []
    for place, gateway in enumerate(both):
        upstream = upstream.replace(f"10.0.0.{5 + place}:8080", gateway.url.removeprefix("http://"))
        monkeypatch.setattr(gateway.services.containers, "all_of", lambda _, place=place: answered.append(place) or [])
    (work_dir / "several.conf").write_text(upstream)
    with nginx_before("http://agent_tools", work_dir, before=f"include {work_dir}/several.conf;") as url:

        def answering(**headers: str) -> set[int]:
            answered.clear()
            for _ in range(3):
                sent = {"Authorization": f"Bearer {KEYS[0]}", **headers}
                assert httpx.get(f"{url}/v1/containers", headers=sent).status_code == 200
            return set(answered)

        found = [answering(**{"X-Api-Key": f"key-{number}"}) for number in range(16)]
        assert {len(each) for each in found} == {1}
        assert set.union(*found) == {0, 1}
        (first,) = answering()
        both[first]._server.stop()
        both[first]._thread.join()
        assert answering() == {1 - first}
