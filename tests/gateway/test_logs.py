"""The log of a gateway's process: its lines, their form, level and request ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from tests.gateway.asking import CODE_TOOL
from tests.gateway.served import Served, imported_once

__all__ = ["imported_once"]
pytestmark = pytest.mark.usefixtures("imported_once")
BODY = {"model": "m", "input": "Go.", "tools": [CODE_TOOL]}


def unusable(request: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("python", '{"code": ')], cut_after=3)


@pytest.fixture
def upstream() -> Iterator[str]:
    with ScriptedServer({"m": unusable}) as server:
        yield server.base_url


def lines_of(upstream: str, work_dir: Path, **settings: str) -> tuple[str, list[str]]:
    """Ask a gateway for something; return the id of that request, and the lines of the log."""
    served = Served(upstream=upstream, data_dir=work_dir / "data", **settings)
    try:
        served.wait()
        answer = httpx.post(f"{served.url}/v1/responses?key=canary", json=BODY, timeout=60)
    finally:
        served.process.terminate()
        lines = served.last_words.splitlines()
        served.process.close()
    return answer.headers["x-request-id"], lines


def test_json_lines_name_their_request(upstream: str, work_dir: Path) -> None:
    id_, lines = lines_of(upstream, work_dir, log_format="json")
    found = [json.loads(line) for line in lines]
    assert all(each["time"].endswith("Z") and each["level"] and each["logger"] for each in found)
    (ended,) = [each for each in found if each.get("path")]
    assert (ended["method"], ended["path"], ended["status"]) == ("POST", "/v1/responses", 502)
    assert (ended["request_id"], ended["client"], ended["key"]) == (id_, "127.0.0.1", "local")
    assert ended["seconds"] >= 0
    assert any("startup complete" in each["message"] for each in found)
    assert "canary" not in str(lines)


def test_text_lines_name_their_request(upstream: str, work_dir: Path) -> None:
    id_, lines = lines_of(upstream, work_dir)
    (ended,) = [line for line in lines if "/v1/responses" in line]
    assert ' INFO agent_tools.gateway.access: 127.0.0.1 "POST /v1/responses" 502 ' in ended
    assert ended.endswith(f"[{id_}]")


def test_the_level_leaves_requests_out_or_adds_those_of_probes(upstream: str, work_dir: Path) -> None:
    _, lines = lines_of(upstream, work_dir / "a", log_level="warning")
    assert not any("/v1/responses" in line or "/health" in line for line in lines)
    _, lines = lines_of(upstream, work_dir / "b", log_level="debug")
    assert any('"GET /health" 200' in line for line in lines)
