"""The operator's view: who sees it, what it shows, what stopping, limiting and revoking do, and the audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.containers.keys import digest, owner_of_digest
from agent_tools.containers.spec import ContainerSpec
from agent_tools.errors import InvalidParams
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from tests.gateway.asking import CODE_TOOL, KEYS, SLEEP, code, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.identity_provider import IdentityProvider

ASKED = (("GET", ""), ("GET", "/keys"), ("POST", "/stop"), ("POST", "/limit"), ("POST", "/revoke"))
EVIL = "<img src=x onerror=alert(1)>"


def call(gateway: Gateway, by: str, path: str = "", method: str = "", **json_body: Any) -> httpx.Response:
    method = method or ("POST" if json_body else "GET")
    headers = {"Authorization": f"Bearer {by}"} if by else {}
    options = {"json": json_body} if method == "POST" else {}
    return httpx.request(method, f"{gateway.url}/page/operator{path}", headers=headers, timeout=60, **options)  # type: ignore[arg-type]


def named_gateway(new_gateway: NewGateway, models: dict[str, Any], **options: Any) -> tuple[Gateway, NamedKeys, str]:
    """A gateway with the key of an operator."""
    gateway = new_gateway(models, named_keys=True, **options)
    named = NamedKeys(gateway.services.store)
    return gateway, named, named.add("chief", KeyLimits(), operator=True)


def test_only_an_operator_sees_or_changes_anything(new_gateway: NewGateway) -> None:
    gateway, named, chief = named_gateway(new_gateway, {}, api_keys=KEYS)
    others = {"": 401, "no-such-key": 401, KEYS[0]: 403, named.add("plain", KeyLimits()): 403}
    others[named.add("server", KeyLimits(), for_users=True)] = 403
    named.read_into(gateway.services.keys)
    mine = gateway.client(chief).containers.create(name="c").id
    for method, path in ASKED:
        for key, status in others.items():
            answer = call(gateway, key, path, method, container=mine, key="chief")
            assert answer.status_code == status, (path, key)
            assert "chief" not in answer.text
            assert mine not in answer.text
        elsewhere = {"Authorization": f"Bearer {chief}", "Sec-Fetch-Site": "cross-site"}
        found = httpx.request(method, f"{gateway.url}/page/operator{path}", headers=elsewhere)
        assert found.json()["error"]["code"] == "foreign_origin"
    assert not any(row.revoked_at for row in named.all())
    states = [
        httpx.get(f"{gateway.url}/page/state", headers={"Authorization": f"Bearer {key}"}).json()["operator"]
        for key in (chief, KEYS[0])
    ]
    assert states == [True, False]
    with pytest.raises(InvalidParams, match="make two keys"):
        named.add("both", KeyLimits(), for_users=True, operator=True)


def test_without_keys_everyone_on_the_machine_is_the_operator_but_no_web_page(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    assert call(gateway, "").json()["containers"] == []
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "same-site"}):
        answer = httpx.post(f"{gateway.url}/page/operator/stop", headers=headers, json={"container": "c"})
        assert answer.status_code == 403


def test_users_of_an_operators_group_are_operators_and_no_others(new_gateway: NewGateway) -> None:
    with IdentityProvider() as provider:
        settings = {**provider.settings, "named_keys": True, "oidc_groups": "groups"}
        gateway = new_gateway({}, **settings)
        named = NamedKeys(gateway.services.store)
        named.add("chiefs", KeyLimits(), group="chiefs", operator=True)
        named.add("staff", KeyLimits(), group="staff")
        named.read_into(gateway.services.keys)
        assert call(gateway, provider.token("ann", groups=["chiefs"])).status_code == 200
        assert call(gateway, provider.token("bob", groups=["staff"])).status_code == 403
        only_mcp = provider.token("ann", groups=["chiefs"], aud=f"{gateway.url}/mcp")
        assert call(gateway, only_mcp).status_code == 401


def test_what_another_runs_is_seen_and_stopped_and_that_is_audited(new_gateway: NewGateway, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    gateway, named, chief = named_gateway(new_gateway, {"m": [code(SLEEP), "It was stopped."]}, audit=str(audit))
    alice = named.add("alice", KeyLimits())
    named.read_into(gateway.services.keys)
    made = gateway.client(alice).containers.create(name=EVIL).id
    asked = {"model": "m", "input": "Go.", "background": True}
    tools: Any = [{**CODE_TOOL, "container": made}]
    response = gateway.client(alice).responses.create(**asked, tools=tools)
    until(lambda: any(gateway.services.containers.running().values()))
    until(lambda: "begun" in audit.read_text())
    (shown,) = call(gateway, chief).json()["containers"]
    facts = {name: shown[name] for name in ("id", "key", "user", "name", "memory", "sandbox", "elsewhere")}
    assert facts == {
        "id": made,
        "key": "alice",
        "user": "",
        "name": EVIL,
        "memory": "1g",
        "sandbox": "busy",
        "elsewhere": "",
    }
    assert call(gateway, chief, "/stop", container=made).json() == {"stopped": made}
    until(lambda: gateway.client(alice).responses.retrieve(response.id).status == "completed")
    assert call(gateway, chief).json()["containers"] == []
    assert gateway.client(alice).containers.retrieve(made).status == "running"
    assert call(gateway, chief, "/stop", container="cntr_none").status_code == 404
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (stopped,) = [line for line in lines if line["event"] == "container_stopped"]
    assert (stopped["key"], stopped["container"]) == ("chief", made)
    assert stopped["owner"] == owner_of_digest(digest(chief))
    assert [line["outcome"] for line in lines if line["event"] == "ended"] == ["cancelled"]
    assert call(gateway, chief).json()["failures"] == []


def test_a_key_is_limited_and_revoked_and_its_volumes_stay(new_gateway: NewGateway, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    gateway, named, chief = named_gateway(new_gateway, {}, audit=str(audit))
    alice = named.add("alice", KeyLimits(3, volumes="data"))
    named.read_into(gateway.services.keys)
    keys = call(gateway, chief, "/keys?find=LIC").json()["keys"]
    assert [(key["name"], key["max_containers"], key["operator"]) for key in keys] == [("alice", 3, False)]
    changed = call(gateway, chief, "/limit", key="alice", max_containers=None, max_requests_per_minute=7).json()
    assert [changed[name] for name in ("max_containers", "max_requests_per_minute", "volumes")] == [None, 7, "data"]
    for wrong in ({"key": "nobody"}, {"key": "alice", "max_containers": -1}, {"key": "alice", "max_containers": 2**31}):
        assert call(gateway, chief, "/limit", **wrong).status_code == 400
    assert call(gateway, chief, "/revoke", key="nobody").status_code == 400
    assert call(gateway, chief, "/revoke", key="alice").json()["revoked"]
    until(lambda: call(gateway, alice).status_code == 401)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line["key"], line["target"]) for line in lines] == [
        ("key_limited", "chief", "alice"),
        ("key_revoked", "chief", "alice"),
    ]
    assert lines[0]["max_requests_per_minute"] == 7
    audit.unlink()
    audit.mkdir()
    assert call(gateway, chief, "/revoke", key="chief").json()["error"]["code"] == "audit_unavailable"
    assert named.find("chief").revoked_at is None


def test_failures_are_listed_with_their_reasons_and_one_key_hides_no_others(new_gateway: NewGateway) -> None:
    gateway, named, chief = named_gateway(new_gateway, {"m": [code("1 / 0"), "So."]})
    alice, busy = named.add("alice", KeyLimits()), named.add("busy", KeyLimits(max_requests_per_minute=1))
    named.read_into(gateway.services.keys)
    gateway.client(alice).responses.create(model="m", input="Go.", tools=[CODE_TOOL])  # type: ignore[list-item]
    row = gateway.services.containers.create(owner_of_digest(digest(alice)), ContainerSpec("c"))
    with gateway.services.containers.use(row.id) as (sandbox, _):
        sandbox.run_code("import time; time.sleep(600)", timeout=0.2)
    for _ in range(4):
        httpx.get(f"{gateway.url}/v1/models", headers={"Authorization": f"Bearer {busy}"})
    body = {"model": "none-such", "input": "Go.", "stream": True}
    httpx.post(f"{gateway.url}/v1/responses", headers={"Authorization": f"Bearer {alice}"}, json=body)
    found = call(gateway, chief).json()["failures"]
    assert [(each["key"], each["kind"], each["count"]) for each in found] == [
        ("busy", "429", 3),
        ("alice", "timed_out", 1),
    ]
    assert "1 requests in a minute" in found[0]["reason"]
    assert found[1]["container"] == row.id
