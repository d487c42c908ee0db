"""The application's own routes."""

from __future__ import annotations

import contextlib
import sqlite3

import httpx
import pytest

from tests.gateway.asking import KEYS
from tests.gateway.conftest import NewGateway


def test_it_tells_whether_it_is_ready(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    assert httpx.get(f"{gateway.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{gateway.url}/ready").json() == {
        "status": "ok",
        "engine": True,
        "upstream": True,
        "database": True,
    }
    lonely = new_gateway({}, upstream="http://127.0.0.1:9/v1", data_dir=gateway.services.config.data_dir / "b")
    answer = httpx.get(f"{lonely.url}/ready")
    assert (answer.status_code, answer.json()["upstream"]) == (503, False)
    assert httpx.get(f"{lonely.url}/v1/models").status_code == 502


def test_it_is_not_ready_without_its_database(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    with contextlib.closing(sqlite3.connect(gateway.services.config.data_dir / "gateway.db")) as database:
        database.execute("ALTER TABLE responses RENAME TO lost")
    answer = httpx.get(f"{gateway.url}/ready")
    assert (answer.status_code, answer.json()["database"], answer.json()["status"]) == (503, False, "unavailable")
    answer = httpx.get(f"{gateway.url}/v1/responses/resp_1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
    assert "sqlite" not in answer.text.lower()


@pytest.mark.parametrize("keys", [(), KEYS])
def test_nothing_is_redirected(new_gateway: NewGateway, keys: tuple[str, ...]) -> None:
    gateway = new_gateway({}, api_keys=keys)
    with httpx.Client(base_url=gateway.url) as client:
        for path in ("/health/", "/metrics/", "/v1/containers/", "/v1/models/", "/page/page.js/"):
            for host in ("evil.example", "localhost"):
                answer = client.get(path, headers={"Host": host, "Authorization": f"Bearer {KEYS[0]}"})
                assert answer.status_code in (403, 404), path
                assert "location" not in answer.headers
