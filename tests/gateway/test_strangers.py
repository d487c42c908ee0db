"""Who may ask a gateway without keys, what it tells strangers, and what it counts of them."""

from __future__ import annotations

import re
from typing import get_args

import httpx
import pytest

from agent_tools.gateway.requests.failures import SecurityEvent
from tests.gateway.conftest import NewGateway

KEYS = ("first-key-123", "second-key-123")
EVENTS = "agent_tools_security_events_total"
FOREIGN = [
    *({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Host": "["}, {"Host": ""}),
    *({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"}),
    *({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "of-tomorrow"}),
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
]
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
PUBLIC = ("/", "/page/page.js", "/health", "/ready", "/metrics", "/nothing")


def test_without_keys_no_foreign_page_is_answered(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    paths = [("GET", path) for path in ("/v1/models", "/v1/containers", "/page/state", *PUBLIC)]
    paths += [("POST", path) for path in ("/page/run", "/v1/responses", "/v1/containers", "/v1/chat/completions")]
    with httpx.Client(base_url=gateway.url) as client:
        for headers in FOREIGN:
            answers = {path: client.request(*path, headers=headers) for path in paths}
            assert {path: each.status_code for path, each in answers.items() if each.status_code != 403} == {}, headers
            assert {each.json()["error"]["code"] for each in answers.values()} == {"foreign_origin"}
    events = gateway.services.metrics.registry.get_sample_value(EVENTS, {"event": "foreign_origin"})
    assert events == len(FOREIGN) * len(paths)
    for headers in ({"Origin": gateway.url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
        assert httpx.get(f"{gateway.url}/v1/models", headers=headers).status_code == 200


def test_the_page_may_be_opened_by_a_link_of_another_site_and_nothing_else_may(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    assert httpx.get(f"{gateway.url}/", headers=LINK).status_code == 200
    assert httpx.get(f"{gateway.url}/v1/containers", headers=LINK).status_code == 403
    assert httpx.get(f"{gateway.url}/page/state", headers=LINK).status_code == 403
    assert httpx.post(f"{gateway.url}/", headers=LINK).status_code == 403


def test_with_keys_what_nobody_owns_is_answered_by_any_name(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, upstream_key="up")
    with httpx.Client(base_url=gateway.url) as client:
        for path in ("/health", "/ready", "/metrics", "/"):
            for headers in ({"Host": "10.1.2.3:8080"}, {"Host": "gateway.example"}, {"Sec-Fetch-Site": "cross-site"}):
                assert client.get(path, headers=headers).status_code == 200, (path, headers)


@pytest.mark.parametrize("keys", [(), KEYS])
def test_nothing_is_redirected(new_gateway: NewGateway, keys: tuple[str, ...]) -> None:
    gateway = new_gateway({}, api_keys=keys)
    with httpx.Client(base_url=gateway.url) as client:
        for path in ("/health/", "/metrics/", "/v1/containers/", "/v1/models/", "/page/page.js/"):
            for host in ("evil.example", "localhost"):
                answer = client.get(path, headers={"Host": host, "Authorization": f"Bearer {KEYS[0]}"})
                assert answer.status_code in (403, 404), path
                assert "location" not in answer.headers


def test_what_strangers_send_makes_no_series(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []}, api_keys=KEYS)

    client = httpx.Client(base_url=gateway.url)

    def lines(numbers: range) -> int:
        for number in numbers:
            for path in ("/v1/models", f"/invented/{number}", "/health"):
                client.request(f"INVENTED{number}", path)
        text = client.get("/metrics").text
        assert "invented" not in text.lower()
        return len(text.splitlines())

    with client:
        assert lines(range(2)) < lines(range(2)) == lines(range(50))
    found = gateway.services.metrics.registry.get_sample_value
    labels = {"method": "other", "route": "health", "status": "405"}
    assert found("agent_tools_requests_total", labels) == 54
    assert found(EVENTS, {"event": "unknown_key"}) == 54


def test_every_security_event_is_there_before_it_happens(new_gateway: NewGateway) -> None:
    text = httpx.get(f"{new_gateway({}).url}/metrics").text
    found = dict(re.findall(r'^agent_tools_security_events_total\{event="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert found == dict.fromkeys(get_args(SecurityEvent), "0.0")
