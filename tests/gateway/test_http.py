"""Bodies and queries that cannot be read."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.asking import has_ended, post, until
from tests.gateway.conftest import NewGateway


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PUT", "/v1/responses", 405), ("GET", "/v1/responses/resp_none", 404)],
)
def test_failures_have_the_apis_shape(new_gateway: NewGateway, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, f"{new_gateway({}).url}{path}")
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_body_that_is_no_json_or_too_large_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_body_bytes=1000)
    assert httpx.post(f"{gateway.url}/v1/responses", content=b"{").status_code == 400
    assert httpx.post(f"{gateway.url}/v1/responses", content=b"[1]").status_code == 400
    assert httpx.post(f"{gateway.url}/v1/responses", content=b"x" * 2000).status_code == 413


def test_an_order_that_is_none_is_refused(new_gateway: NewGateway) -> None:
    answer = httpx.get(f"{new_gateway({}).url}/v1/files?order=bogus")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "order")


def test_a_number_of_a_query_that_cannot_be_read_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = post(gateway, tools=[], background=True).json()["id"]
    until(lambda: has_ended(gateway, id_))
    container = gateway.client().containers.create(name="a").id
    lists = ("containers", "files", f"containers/{container}/files", f"responses/{id_}/input_items")
    numbers = ("9" * 5000, "-" + "9" * 5000, "9" * 19, "\u0661", "1e3", "", "0x1", "1.0", " 1")
    for number in numbers:
        queries = [(path, {"limit": number}) for path in lists]
        for path, query in (*queries, (f"responses/{id_}", {"stream": "true", "starting_after": number})):
            answer = httpx.get(f"{gateway.url}/v1/{path}", params=query)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, list(query)[-1]), (path, number[:20])
