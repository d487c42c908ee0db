"""The page: its files, its state, and the code that is tried on it."""

from __future__ import annotations

import json
import re
from os.path import normpath
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

import httpx

from agent_tools.browser import figures
from agent_tools.browser.figures import LIBRARIES
from agent_tools.gateway.page import routes
from agent_tools.runtime.runtime import Runtime
from tests.gateway.conftest import NewGateway
from tests.gateway.engines import DeadEngine
from tests.identity_provider import IdentityProvider
from tests.recorder import Answer, Recorder


def test_the_page_shows_what_runs_and_tries_code(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    page = httpx.get(f"{gateway.url}/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path in re.findall(r'(?:src|href)="([^"#][^"]*)"', page.text):
        assert httpx.get(urljoin(f"{gateway.url}/", path)).status_code == 200, path
    answer = httpx.post(f"{gateway.url}/page/run", json={"code": "print('hello'); 6 * 7"}, timeout=60)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [event["kind"] for event in events] == ["started", "stdout", "result", "done"]
    assert events[2]["text"] == "42"
    state = httpx.get(f"{gateway.url}/page/state").json()
    assert [each["id"] for each in state["containers"]] == [events[0]["container"]]
    assert (state["sandboxes"], state["max_kept_sandboxes"]) == (1, 64)
    assert httpx.post(f"{gateway.url}/page/stop", json={"container": events[0]["container"]}).json() == {"stopped": 0}


def test_every_file_of_the_page_is_served_and_no_other(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    folders = [Path(each.__file__).parent / "assets" for each in (routes, figures)]
    paths = {path.relative_to(folder): path for folder in folders for path in folder.rglob("*") if path.is_file()}
    files = {name.as_posix(): path for name, path in paths.items() if name.as_posix() != "index.html"}
    for name, path in files.items():
        answer = httpx.get(f"{gateway.url}/page/{name}")
        assert (answer.status_code, answer.content) == (200, path.read_bytes()), name
        for imported in re.findall(r'from "(\.[^"]+)"', answer.text):
            assert normpath(PurePosixPath(name).parent / imported) in files
    for name in ("index.html", "views", "../routes.py", "%2e%2e/routes.py", "views/../../routes.py"):
        assert httpx.get(f"{gateway.url}/page/{name}").status_code == 404, name


def test_the_page_says_why_code_was_not_run(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, Runtime(DeadEngine(), lambda packages: "none"))
    answer = httpx.post(f"{gateway.url}/page/run", json={"code": "1"}, timeout=60)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [event["kind"] for event in events] == ["started", "error", "done"]
    assert events[1]["text"].startswith("The code was not run: The code interpreter is not available")
    assert events[2]["ending"] == "refused"


def test_the_page_asks_for_a_key_where_one_is_needed_and_is_refused_without(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-the-test",))
    assert '<body class="locked">' in httpx.get(f"{gateway.url}/").text
    assert httpx.get(f"{gateway.url}/page/state").status_code == 401
    for path in ("/page/run", "/page/stop"):
        assert httpx.post(f"{gateway.url}{path}", json={"container": "c"}).status_code == 401


def test_the_page_reaches_the_providers_tokens_and_no_other_place(new_gateway: NewGateway) -> None:
    with IdentityProvider() as provider:
        provider.metadata = {"token_endpoint": f'{provider.issuer}/"><script>'}
        page = httpx.get(f"{new_gateway({}, **provider.settings, oidc_client_id='p').url}/")
        assert f"connect-src 'self' {provider.issuer};" in page.headers["content-security-policy"]
        assert '<body class="locked" data-sign-on="{&quot;authorization&quot;' in page.text
        assert "<script>" not in page.text
        for endpoint in ("http://evil.example/token", "https://a.example; script-src */token", 5):
            provider.metadata = {"token_endpoint": endpoint}
            page = httpx.get(f"{new_gateway({}, **provider.settings, oidc_client_id='p').url}/")
            assert "connect-src 'self'; " in page.headers["content-security-policy"]
            assert '<body class="locked">' in page.text


def test_the_page_cannot_stop_what_runs_in_anothers_container(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-mine", "key-of-theirs"))
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("key-of-mine", "key-of-theirs"))
    id_ = httpx.post(f"{gateway.url}/v1/containers", headers=mine, json={"name": "c"}).json()["id"]
    body = {"container": id_}
    assert httpx.post(f"{gateway.url}/page/stop", headers=theirs, json=body).status_code == 404
    assert httpx.post(f"{gateway.url}/page/stop", headers=mine, json=body).json() == {"stopped": 0}


def test_the_frame_of_figures_has_no_origin_and_loads_libraries_alone(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    policy = httpx.get(f"{gateway.url}/page/frame/figure.html").headers["content-security-policy"]
    for rule in ("sandbox allow-scripts", "default-src 'none'", "connect-src 'none'", "frame-ancestors 'self'"):
        assert rule in policy.split("; ")
    assert "unsafe-eval" not in policy
    assert re.search(r"script-src 'sha256-[\w+/=]{44}' blob:;", policy)
    assert "frame-src 'self'" in httpx.get(gateway.url).headers["content-security-policy"].split("; ")


def test_libraries_for_figures_come_from_the_operators_folder_whole_or_not_at_all(
    new_gateway: NewGateway, tmp_path: Path
) -> None:
    for name in ("plotly.min.js", "vega.min.js", "other.js"):
        (tmp_path / name).write_text(f"// {name}")
    gateway = new_gateway({}, figures=str(tmp_path))
    assert httpx.get(f"{gateway.url}/page/state").json()["libraries"] == {"plotly": ["plotly.min.js"]}
    answer = httpx.get(f"{gateway.url}/page/library/plotly.min.js")
    assert (answer.text, answer.headers["content-type"]) == ("// plotly.min.js", "text/javascript; charset=utf-8")
    for name in ("vega.min.js", "other.js", "..%2fother.js", "pyproject.toml"):
        assert httpx.get(f"{gateway.url}/page/library/{name}").status_code == 404, name
    without = new_gateway({}, figures=str(tmp_path / "none"))
    assert httpx.get(f"{without.url}/page/state").json()["libraries"] == {}
    assert all(
        httpx.get(f"{without.url}/page/library/{each}").status_code == 404 for each in sum(LIBRARIES.values(), ())
    )


def test_the_state_says_what_is_wrong_with_the_upstream(new_gateway: NewGateway) -> None:
    def problem(**options: str) -> str:
        found: str = httpx.get(f"{new_gateway({}, **options).url}/page/state", timeout=30).json()["upstream_problem"]
        return found

    assert problem() == ""
    assert problem(upstream="http://127.0.0.1:9/v1") == (
        "does not answer. Start it, or check the URL: it usually ends in /v1."
    )
    with Recorder(lambda _: Answer(b"", status=302, headers={"Location": "https://sso.example/login?next=x"})) as moved:
        assert problem(upstream=moved.base_url) == (
            "redirects to https://sso.example/login. Set --upstream to the address that answers itself."
        )
    there = new_gateway({}).upstream.base_url
    assert problem(upstream=there.removesuffix("/v1")) == (
        "has no list of models. Check the URL: it usually ends in /v1."
    )


def test_chats_are_the_conversations_of_the_page_the_one_used_last_first(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-mine", "key-of-theirs"))
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("key-of-mine", "key-of-theirs"))

    def made(**metadata: str) -> str:
        answer = httpx.post(f"{gateway.url}/v1/conversations", headers=mine, json={"metadata": metadata})
        found: str = answer.raise_for_status().json()["id"]
        return found

    first, _, second = made(page_title="a", page_response="resp_1"), made(topic="x"), made(page_response="resp_2")
    httpx.post(f"{gateway.url}/v1/conversations/{first}", headers=mine, json={"metadata": {"page_response": "resp_3"}})
    chats = httpx.get(f"{gateway.url}/page/chats", headers=mine).json()["chats"]
    assert [(chat["id"], chat["notes"]["page_response"]) for chat in chats] == [(first, "resp_3"), (second, "resp_2")]
    assert httpx.get(f"{gateway.url}/page/chats", headers=theirs).json()["chats"] == []
    assert httpx.get(f"{gateway.url}/page/chats").status_code == 401
