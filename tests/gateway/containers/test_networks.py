from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agent_tools.containers.failures import NetworkRefused
from agent_tools.containers.network import check_network
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import sandbox_cfg
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.sandbox.options import Options
from tests.gateway.asking import code, post, stream, upload
from tests.gateway.conftest import NewGateway

OFFERED = ("pypi", "api.example.com", "*.example.org", "example.net:8443")


def policy(*domains: object, **more: object) -> dict[str, Any]:
    return {"type": "allowlist", "allowed_domains": list(domains), **more}


def config(**options: Any) -> GatewayConfig:
    return GatewayConfig("http://u", allowed_domains=OFFERED, **options)


@pytest.mark.parametrize(
    "domain",
    [
        *("pypi", "pypi.org", "files.pythonhosted.org", "API.example.com", "a.example.org", "a.b.example.org"),
        *("*.example.org", "*.a.example.org", "example.net:8443"),
    ],
)
def test_what_the_operator_lists_may_be_asked_for(domain: str) -> None:
    assert check_network([domain, domain], config()) == domain.lower()


@pytest.mark.parametrize(
    "domain",
    [
        *(
            "example.org",
            "*.example.com",
            "*.org",
            "api.example.com:80",
            "example.net",
            "test.pypi.org",
            "evil.example",
        ),
        *("127.0.0.1", "169.254.169.254:80", "localhost", "*", "", "https://pypi.org", "a b.example.org", "\0"),
    ],
)
def test_a_container_reaches_no_more_than_the_operator_lists(domain: str) -> None:
    with pytest.raises(NetworkRefused):
        check_network(["pypi", domain], config())


def test_without_a_list_of_the_operators_there_is_no_network() -> None:
    assert check_network([], GatewayConfig("http://u")) == ""
    with pytest.raises(NetworkRefused, match="no network here"):
        check_network(["pypi"], GatewayConfig("http://u"))


@pytest.mark.parametrize("options", [{"allowed_domains": "*"}, {"private_networks": "10.0.0.1/8"}])
def test_a_list_of_the_operators_that_cannot_be_used_is_refused_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        GatewayConfig("http://u", **options)


def test_the_network_is_kept_shown_told_to_the_model_and_given_to_the_sandbox(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]}, allowed_domains=OFFERED, private_networks=("10.1.0.0/16",))
    made = gateway.client().containers.create(name="a", network_policy=policy("pypi", "A.example.org"))  # type: ignore[arg-type]
    shown = {"type": "allowlist", "allowed_domains": ["pypi", "a.example.org"]}
    assert httpx.get(f"{gateway.url}/v1/containers/{made.id}").json()["network_policy"] == shown
    (row,) = gateway.services.store.find(ContainerRecord)
    cfg = sandbox_cfg(gateway.services.config, row, Path("/nowhere"), 0)
    found = Options.read(cfg).isolation.policy
    assert found is not None
    assert (found.allow, [str(block) for block in found.private]) == (("pypi", "a.example.org"), ["10.1.0.0/16"])
    stream(gateway, tools=[{"type": "code_interpreter", "container": made.id}])
    (told,) = [tool["function"]["description"] for tool in gateway.upstream.requests[-1]["tools"]]
    assert "only these hosts can be reached: pypi, a.example.org. `%pip install` works." in told


WRONG = [
    policy("evil.example"),
    policy(),
    policy(1),
    policy(*["a.example.org"] * 101),
    policy("pypi", domain_secrets=[{"domain": "pypi.org", "name": "a", "value": "b"}]),
    {"type": "all"},
    {"allowed_domains": ["pypi"]},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_network_that_is_not_given_is_refused_before_anything_is_made(
    new_gateway: NewGateway, wrong: dict[str, Any]
) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]}, allowed_domains=OFFERED)
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.client().containers.create(name="c", network_policy=wrong)  # type: ignore[arg-type]
    assert str(refused.value.param).startswith("network_policy")
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "network_policy": wrong}}]
    answer = post(gateway, tools=tools)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tools[0].container.network_policy")
    assert gateway.client().containers.list().data == []


def test_a_conversation_gets_another_container_with_another_network(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok.", code("2"), "Ok.", "Ok."]}, allowed_domains=OFFERED)
    file_ids = [upload(gateway.client(), 10).id]  # so that a container is made before any code runs

    def asked(network: dict[str, Any], **more: object) -> Any:
        container = {"type": "auto", "network_policy": network, "file_ids": file_ids}
        return post(gateway, tools=[{"type": "code_interpreter", "container": container}], **more).json()

    first = asked({"type": "disabled"})
    same = asked({"type": "disabled"}, previous_response_id=first["id"])
    asked(policy("pypi"), previous_response_id=same["id"])
    assert sorted(row.network for row in gateway.services.store.find(ContainerRecord)) == ["", "pypi"]
