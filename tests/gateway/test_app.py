"""The application's own routes."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from agent_tools.engines.context import tag_for
from agent_tools.engines.docker import image
from agent_tools.engines.engine import EngineContainer
from agent_tools.errors import EngineUnavailable, InvalidParams
from agent_tools.gateway import readiness
from agent_tools.gateway.serving.second_port import SecondPort
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.doubles import ProcessEngine
from tests.gateway.asking import CODE_TOOL, DRAW, INCLUDE, KEYS, code, outputs
from tests.gateway.conftest import NewGateway
from tests.waiting import until


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


def test_it_is_not_ready_while_the_image_is_made_and_shows_the_progress(new_gateway: NewGateway) -> None:
    class Engine:
        def has_image(self, tag: str) -> bool:
            seen.append(httpx.get(f"{gateway.url}/ready"))
            return len(seen) > 1

    gateway, seen = new_gateway({}), list[httpx.Response]()
    making = threading.Thread(target=image.ensure, args=(Engine(),))
    making.start()
    making.join()
    assert [each.status_code for each in seen] == [200, 503]
    assert (seen[1].json()["status"], seen[1].json()["image"]) == ("unavailable", f"Preparing {tag_for()}")
    assert httpx.get(f"{gateway.url}/ready").status_code == 200


class LostEngine(ProcessEngine):
    """An engine that has answered once, and does no more."""

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        raise EngineUnavailable("No engine answers.")


def test_it_is_not_ready_once_its_engine_is_gone(new_gateway: NewGateway, process_runtime: Runtime) -> None:
    gateway = new_gateway({"m": ["Ok."]}, Runtime(LostEngine(), lambda packages: "none"))
    answer = httpx.get(f"{gateway.url}/ready")
    assert (answer.status_code, answer.json()["engine"], answer.json()["database"]) == (503, False, True)
    lines = httpx.get(f"{gateway.url}/metrics").text.splitlines()
    assert {'agent_tools_ready{part="engine"} 0.0', 'agent_tools_ready{part="database"} 1.0'} < set(lines)
    least, free = (
        float(next(line.split()[1] for line in lines if line.startswith(f"agent_tools_disk_{name}_bytes ")))
        for name in ("min_free", "free")
    )
    assert (least, free > 0) == (gateway.services.config.min_disk_free, True)


class HangingEngine(ProcessEngine):
    """An engine that hangs at will when a probe asks it, and counts that."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.goes_on, self.asked = threading.Event(), threading.Event(), 0

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        if self.hangs.is_set():
            self.asked += 1
            assert self.goes_on.wait(60)
        return []


def test_those_who_ask_at_the_same_time_share_one_check(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "READY_TIMEOUT", 60)
    engine = HangingEngine()
    gateway = new_gateway({"m": ["Ok."]}, Runtime(engine, lambda packages: "none"))
    engine.hangs.set()
    with ThreadPoolExecutor(60) as clients:
        answers = [clients.submit(httpx.get, f"{gateway.url}/ready", timeout=60) for _ in range(60)]
        until(lambda: gateway.services.metrics.in_flight._value.get() == 60)
        answer = httpx.get(f"{gateway.url}/v1/responses/resp_1")  # read in one of the threads of all requests
        engine.goes_on.set()
        assert answer.status_code == 404
        assert {each.result().status_code for each in answers} == {200}
    assert engine.asked == 1


def test_an_engine_that_hangs_is_asked_once(new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = HangingEngine()
    gateway = new_gateway({"m": ["Ok."]}, Runtime(engine, lambda packages: "none"))
    engine.hangs.set()
    with monkeypatch.context() as patch:
        patch.setattr(readiness, "READY_TIMEOUT", 0.1)
        answers = [httpx.get(f"{gateway.url}/ready") for _ in range(3)]
    engine.goes_on.set()
    assert [(each.status_code, each.json()["engine"]) for each in answers] == [(503, False)] * 3
    assert engine.asked == 1
    assert httpx.get(f"{gateway.url}/ready").json()["engine"]


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


def test_a_second_port_has_what_an_operator_asks_for(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, metrics_port=0, api_keys=KEYS)
    second = f"http://127.0.0.1:{gateway.second_port}"
    assert httpx.get(f"{gateway.url}/metrics").status_code == 404
    assert httpx.get(f"{gateway.url}/health").status_code == 200
    assert "agent_tools_requests_in_flight" in httpx.get(f"{second}/metrics").text
    assert httpx.get(f"{second}/ready").status_code == httpx.get(f"{second}/health").status_code == 200
    for path in ("/", "/v1/models", "/v1/containers", "/page/page.js"):
        assert httpx.get(second + path, headers={"api-key": KEYS[0]}).status_code == 404
    gateway.__exit__()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{second}/health")


def test_a_second_port_that_is_taken_is_told(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, metrics_port=0)
    with pytest.raises(InvalidParams, match=r"metrics_port: .* cannot be listened on"):
        SecondPort("127.0.0.1", gateway.second_port)


@pytest.mark.parametrize("below", ["", "/tools/code"])
def test_a_proxy_may_show_it_below_a_path(new_gateway: NewGateway, below: str) -> None:
    gateway = new_gateway({"m": [code(DRAW), "Ok."]}, root_path="/tools/code", api_keys=KEYS, image_urls="content")
    url, headers = gateway.url + below, {"x-api-key": KEYS[0]}
    page = httpx.get(f"{url}/").text
    for path in re.findall(r'(?:href|src)="([^"]+)"', page):
        assert not path.startswith("/")
        assert httpx.get(f"{url}/{path}").status_code == 200
    assert httpx.get(f"{url}/v1/containers").status_code == 401, "what has an owner has one below a path, too"
    assert httpx.get(f"{url}/mcp").status_code == 404
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0]) as client:
        asked: Any = {"tools": [CODE_TOOL], "include": INCLUDE}
        answer = client.responses.create(model="m", input="Go.", **asked)
    (found,) = (each["url"] for each in outputs(answer.model_dump())[0]["outputs"] if each["type"] == "image")
    assert found.startswith("/tools/code/v1/containers/")
    assert httpx.get(gateway.url + found, headers=headers).content.startswith(b"\x89PNG")


def test_a_path_that_only_begins_alike_is_another(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, root_path="/code")
    for path in ("/codex/v1/models", "/code", "/code/code/health", "/cod/e/health"):
        assert httpx.get(gateway.url + path).status_code == 404
    assert httpx.get(f"{gateway.url}/code/health").status_code == 200


def test_what_is_not_here_is_told_with_what_is(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, endpoints=("embeddings",))
    for method, path in (("POST", "/v1/batches"), ("GET", "/v1/vector_stores/vs_1/files"), ("GET", "/v1/evals")):
        answer = httpx.request(method, gateway.url + path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (404, "unknown_url", "invalid_request_error")
        assert error["message"].startswith(
            f"{path} does not exist here. Paths below /v1: chat/completions, containers,"
        )
        assert error["message"].endswith("passed on to the upstream: embeddings.")
    long = httpx.get(f"{gateway.url}/v1/{'a' * 5_000}").json()["error"]["message"]
    assert len(long) < 500
    assert "passed on" not in httpx.get(f"{new_gateway({}, endpoints=()).url}/v1/x").json()["error"]["message"]
    assert httpx.get(f"{gateway.url}/x").json()["error"]["message"] == "Not Found."
    for path in ("/responses", "/chat/completions", "/models/m", "/embeddings"):
        error = httpx.post(gateway.url + path, json={}).json()["error"]
        assert error["code"] == "unknown_url"
        assert f"Did you mean /v1{path}? The base URL of clients ends in /v1." in error["message"]


def test_azures_clients_find_everything(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")}, api_keys=KEYS, root_path="/code")
    named = {"api_key": KEYS[0], "api_version": "2025-04-01-preview", "max_retries": 0}
    for url in (gateway.url, f"{gateway.url}/code"):
        with openai.AzureOpenAI(azure_endpoint=url, **named) as client:
            assert client.responses.create(model="m", input="Hi.").output_text == "Ok."
            said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}])
            assert said.choices[0].message.content == "Ok."
            assert client.files.list().data == []
        with openai.OpenAI(base_url=f"{url}/openai/v1/", api_key=KEYS[0]) as client:
            assert client.responses.create(model="m", input="Hi.").output_text == "Ok."
            assert [model.id for model in client.models.list()] == ["m"]
    for path in ("/openai/v1/files", "/openai/files", "/openai/deployments/m/files"):
        assert httpx.get(gateway.url + path, headers={"api-key": "wrong"}).status_code == 401
        assert httpx.get(gateway.url + path, headers={"api-key": KEYS[0]}).status_code == 200
    for path in ("/openai/metrics", "/openai/v1/../health", "/openai", "/openai/v1", "/openai/v1/openai/v1/files"):
        assert httpx.get(gateway.url + path, headers={"api-key": KEYS[0]}).status_code == 404


def test_a_method_that_a_route_lacks_is_answered_with_those_that_it_has(new_gateway: NewGateway) -> None:
    answer = httpx.put(f"{new_gateway({}).url}/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
