"""Users of an identity provider: what they may, what they see, and when they are let in no more."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from agent_tools.bodies.sign_on import LEEWAY
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.mcp import asgi_app as mcp
from agent_tools.wires import mount_of
from tests.gateway.asking import KEYS, code, refused, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.connections import connected, counted
from tests.gateway.requests.test_auth import code_tool
from tests.identity_provider import AUDIENCE, IdentityProvider
from tests.mcp_door.test_http import HEADERS, HELLO
from tests.wires.test_terminal_sockets import closed

SOON = 2.0  # seconds, in which a connection opens


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as made:
        yield made


def expiring(provider: IdentityProvider, **claims: Any) -> str:
    """A token that the gateway accepts for a moment only."""
    return provider.token(exp=time.time() - LEEWAY + SOON, **claims)


def get(gateway: Gateway, token: str, path: str = "/v1/containers") -> httpx.Response:
    return httpx.get(f"{gateway.url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def test_groups_have_limits_and_users_see_only_what_is_theirs(
    new_gateway: NewGateway, provider: IdentityProvider
) -> None:
    settings = {**provider.settings, "named_keys": True, "oidc_groups": "groups", "api_keys": KEYS}
    gateway = new_gateway({"m": ["Ok."]}, **settings)
    named = NamedKeys(gateway.services.store)
    named.add("few", KeyLimits(max_containers=1, max_requests_per_minute=50), group="/Team A")
    named.add("many", KeyLimits(), group="/Team B")
    named.read_into(gateway.services.keys)
    ann, bob = provider.token("ann", groups=["/Team A"]), provider.token("bob", groups=["x", "/Team B"])
    mine, theirs = gateway.client(ann), gateway.client(bob)
    container, file = mine.containers.create(name="c"), mine.files.create(file=("a", b"a"), purpose="user_data")
    response = mine.responses.create(model="m", input="Hi.")
    assert refused(lambda: mine.containers.create(name="d"))[0] == 429
    for name in ("c", "d"):
        theirs.containers.create(name=name)
    for use in (
        lambda: theirs.containers.retrieve(container.id),
        lambda: theirs.containers.files.list(container.id),
        lambda: theirs.files.content(file.id),
        lambda: theirs.responses.retrieve(response.id),
    ):
        with pytest.raises(NotFoundError):
            use()
    again = gateway.client(provider.token("ann", groups=["/Team A", "/Team B"]))
    assert [each.id for each in again.containers.list()] == [container.id]
    assert get(gateway, provider.token("eve", groups=["/Team C"])).status_code == 403
    assert get(gateway, provider.token("eve")).status_code == 403
    assert get(gateway, KEYS[0]).json()["data"] == []
    for key in ("/Team A", "group /Team A", "few"):
        assert get(gateway, key).status_code == 401
    registry = gateway.services.metrics.registry
    counts = {
        key: registry.get_sample_value("agent_tools_key_requests_total", {"key": key, "end": "2xx"})
        for key in ("few", "many", "ann")
    }
    assert counts == {"few": 4, "many": 2, "ann": None}
    named.revoke("few")
    until(lambda: get(gateway, ann).status_code == 403)
    assert get(gateway, bob).status_code == 200


def test_work_of_users_ends_with_their_group(new_gateway: NewGateway, provider: IdentityProvider) -> None:
    settings = {**provider.settings, "named_keys": True, "oidc_groups": "groups"}
    gateway = new_gateway({"m": [code("import time; time.sleep(600)")]}, **settings)
    named = NamedKeys(gateway.services.store)
    named.add("few", KeyLimits(), group="a")
    named.read_into(gateway.services.keys)
    client = gateway.client(provider.token(groups=["a"]))
    made = client.responses.create(model="m", input="Go.", tools=code_tool({"type": "auto"}), background=True)
    until(lambda: sum(gateway.services.containers.running().values()) == 1)
    named.revoke("few")
    until(lambda: not any(gateway.services.containers.running().values()))
    named.add("again", KeyLimits(), group="a2")
    assert made.status in ("queued", "in_progress")


def test_without_groups_every_user_of_the_provider_is_let_in_and_no_other(
    new_gateway: NewGateway, provider: IdentityProvider
) -> None:
    gateway = new_gateway({"m": ["Ok."]}, **provider.settings, mounts=[mcp.MOUNT])
    assert gateway.client(provider.token()).responses.create(model="m", input="Hi.").status == "completed"
    assert provider.token().split(".")[0] not in str(gateway.upstream.headers)
    for headers in (
        *({}, {"Authorization": f"Bearer {provider.token(iss='x')}"}, {"Authorization": provider.token()}),
        *({"X-User-Id": "ann"}, {"X-Forwarded-User": "ann"}, {"X-Forwarded-Access-Token": provider.token()}),
        *({"Cookie": f"token={provider.token()}"}, {"Authorization": "Bearer a-key"}, {"Authorization": "Bearer .."}),
    ):
        for path in (f"/v1/containers?access_token={provider.token()}", "/page/state", "/mcp"):
            answer = httpx.get(f"{gateway.url}{path}", headers=headers)
            assert answer.status_code == 401
            door = path if path == "/mcp" else ""
            assert f'{AUDIENCE}/.well-known/oauth-protected-resource{door}"' in answer.headers["www-authenticate"]
    refused_ = get(gateway, provider.token(aud="other"))
    assert refused_.json()["error"]["code"] == "invalid_token"
    assert 'error="invalid_token"' in refused_.headers["www-authenticate"]
    assert counted(gateway, "unknown_key") == 28


def test_a_token_for_mcp_opens_nothing_else(new_gateway: NewGateway, provider: IdentityProvider) -> None:
    gateway = new_gateway({}, **provider.settings, mounts=[mcp.MOUNT])
    token = provider.token(aud=f"{AUDIENCE}/mcp")
    headers = {"Authorization": f"Bearer {token}", **HEADERS}
    assert httpx.post(f"{gateway.url}/mcp", headers=headers, json=HELLO).status_code == 200
    for path in ("/v1/containers", "/page/state", "/mcpx", "/MCP"):
        assert get(gateway, token, path).status_code in (401, 404)
    assert get(gateway, token).status_code == 401
    about = httpx.get(f"{gateway.url}/.well-known/oauth-protected-resource/mcp", headers={"Host": "evil.example"})
    assert about.json()["resource"] == f"{AUDIENCE}/mcp"
    assert about.json()["authorization_servers"] == [provider.issuer]
    for path in ("", "/"):
        found = httpx.get(f"{gateway.url}/.well-known/oauth-protected-resource{path}")
        assert found.status_code == (404 if path else 200)


def test_a_provider_that_is_down_is_answered_503(new_gateway: NewGateway, provider: IdentityProvider) -> None:
    gateway = new_gateway({}, **provider.settings, api_keys=KEYS)
    provider.is_down = True
    answer = get(gateway, provider.token())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "identity_provider_unavailable")
    assert get(gateway, KEYS[0]).status_code == 200
    assert httpx.get(f"{gateway.url}/v1/containers").status_code == 401


def test_a_socket_ends_with_its_token(new_gateway: NewGateway, provider: IdentityProvider) -> None:
    gateway = new_gateway({"m": ["Ok."]}, **provider.settings)
    assert get(gateway, provider.token()).status_code == 200  # the provider's keys are known
    with connected(gateway, expiring(provider)) as client:
        assert closed(client) == 1008
    until(lambda: gateway.app.state.sockets.open == 0)


def test_a_shell_ends_with_its_token_and_takes_none_in_its_address(
    new_gateway: NewGateway, provider: IdentityProvider
) -> None:
    mounts = [mount_of(name) for name in ("terminal", "codex")]
    gateway = new_gateway({}, **provider.settings, mounts=mounts)
    url, token = gateway.url.replace("http", "ws", 1), provider.token()
    made = httpx.post(f"{gateway.url}/terminal/api/terminals", headers={"Authorization": f"Bearer {token}"})
    shell = f"{url}/terminal/api/terminals/{made.json()['id']}"
    for address in (f"{shell}?token={token}", f"{url}/codex/a?token={token}", f"{url}/codex/a/{provider.token()}"):
        with pytest.raises((InvalidStatus, ConnectionClosed)), connect(address) as refused_:  # noqa: PT012
            refused_.send(json.dumps({"type": "auth", "token": provider.token(aud="other")}))
            refused_.recv(60)
    with pytest.raises(InvalidStatus):
        connect(
            shell, additional_headers={"Authorization": f"Bearer {provider.token()}", "Origin": "https://evil.example"}
        )
    with connect(shell) as socket:
        socket.send(json.dumps({"type": "auth", "token": expiring(provider)}))
        assert closed(socket) == 1008


def test_a_stream_that_is_asked_for_ends_with_its_token(new_gateway: NewGateway, provider: IdentityProvider) -> None:
    gateway = new_gateway({"m": [code("import time; time.sleep(600)")]}, **provider.settings)
    client = gateway.client(provider.token())
    made = client.responses.create(model="m", input="Go.", tools=code_tool({"type": "auto"}), background=True)
    url, headers = f"{gateway.url}/v1/responses/{made.id}", {"Authorization": f"Bearer {expiring(provider)}"}
    with httpx.stream("GET", url, params={"stream": "true"}, headers=headers, timeout=60) as stream:
        assert stream.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            stream.read()
    assert client.responses.cancel(made.id).status == "cancelled"


def test_no_log_has_a_token_and_the_audit_log_has_the_user(
    new_gateway: NewGateway, provider: IdentityProvider, work_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    audit = work_dir / "audit.jsonl"
    gateway = new_gateway(
        {"m": [code("1"), "Ok."]}, **provider.settings, audit=str(audit), mounts=[mcp.MOUNT], log_level="debug"
    )
    token, others = provider.token(), [provider.token(aud="other"), provider.token("b" * 300), provider.token(kid="x")]
    gateway.client(token).responses.create(model="m", input="Go.", tools=code_tool({"type": "auto"}))
    for each in (token, *others):
        for path in ("/v1/containers", "/page/state", f"/v1/containers?access_token={each}", "/mcp"):
            get(gateway, each, path)
    served = [each.getMessage() for each in caplog.records if not each.name.startswith("http")]  # not the client's
    assert any("/v1/containers" in each for each in served)
    written = "\n".join([audit.read_text(), *served])
    assert not any(part in written for each in (token, *others) for part in each.split(".")[1:])
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {(each["key"], each["user"]) for each in lines} == {("sign-on", "ann")}
    assert [each["event"] for each in lines] == ["container_made", "begun", "ended"]


@pytest.mark.parametrize(
    "settings", [{"oidc_groups": "groups"}, {"oidc_groups": "groups", "named_keys": True}, {"oidc_client_id": "page"}]
)
def test_settings_without_a_provider_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match="oidc_issuer"):
        GatewayConfig(upstream="http://none", **settings)


def test_a_provider_opens_the_gateway_to_the_network_and_no_key_does_too() -> None:
    open_ = GatewayConfig(upstream="http://none", host="0.0.0.0", oidc_issuer="https://a.example", oidc_audience=("a",))
    assert not open_.passes_clients_keys
    assert open_.has_many_keys
