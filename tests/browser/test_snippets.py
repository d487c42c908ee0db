"""What the page gives to copy works as it is copied."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route

from agent_tools.mcp import asgi_app
from agent_tools.testing import ScriptedReply
from tests.browser.conftest import Visit
from tests.clients.test_node import NODE, SCRIPTS
from tests.gateway.asking import code
from tests.gateway.conftest import Gateway, NewGateway

KEY = "key-of-the-test"
REPLIES = [code("import datetime; print(datetime.date(2000, 2, 29).strftime('%A'))"), ScriptedReply(text="A Tuesday.")]


def copied(page: Page, client: str) -> str:
    """Return what the button to copy puts on the clipboard."""
    page.get_by_role("button", name=client, exact=True).click()
    page.locator("#snippet").get_by_role("button", name="Copy").click()
    page.locator("#snippet").get_by_role("button", name="Copied").wait_for()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def snippet(chromium: Browser, gateway: Gateway, client: str) -> str:
    with chromium.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = Visit(context, gateway, "connect").page
        if gateway.services.keys.are_needed:
            page.get_by_label("API key").fill(KEY)
            page.get_by_label("API key").press("Enter")
        return copied(page, client)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("api_keys", [(), (KEY,)], ids=["open", "locked"])
def test_python(chromium: Browser, new_gateway: NewGateway, tmp_path: Path, api_keys: tuple[str, ...]) -> None:
    gateway = new_gateway({"m": REPLIES}, api_keys=api_keys)
    text = snippet(chromium, gateway, "Python")
    assert ("YOUR_KEY" in text, KEY in text) == (bool(api_keys), False)
    assert run([sys.executable, "-c", text.replace("YOUR_KEY", KEY)], tmp_path) == "A Tuesday.\n"


def test_javascript(chromium: Browser, new_gateway: NewGateway, tmp_path: Path) -> None:
    gateway = new_gateway({"m": REPLIES})
    (tmp_path / "node_modules").symlink_to(SCRIPTS / "node_modules")
    (tmp_path / "snippet.mjs").write_text(snippet(chromium, gateway, "JavaScript"))
    assert run([os.fspath(NODE), "snippet.mjs"], tmp_path) == "A Tuesday.\n"


def test_curl(chromium: Browser, new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": REPLIES})
    command, url, *options = shlex.split(snippet(chromium, gateway, "curl").replace("\\\n", " "))
    headers = dict(options[place + 1].split(": ") for place, option in enumerate(options) if option == "-H")
    answer = httpx.post(url, headers=headers, content=options[options.index("-d") + 1], timeout=60).json()
    assert command == "curl"
    assert answer["output"][0]["outputs"] == [{"type": "logs", "logs": "Tuesday\n"}]


def test_codex(chromium: Browser, new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": REPLIES})
    text = snippet(chromium, gateway, "Codex")
    assert f'base_url = "{gateway.url}/v1"' in text
    assert 'model = "m"' in text
    assert "--set unknown_tools=ignore" in text
    ignoring = new_gateway({"m": REPLIES}, unknown_tools="ignore")
    assert "unknown_tools" not in snippet(chromium, ignoring, "Codex")


def test_mcp(chromium: Browser, new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": REPLIES}, mounts=[asgi_app.MOUNT])
    server = json.loads(snippet(chromium, gateway, "MCP"))["mcpServers"]["python"]
    assert server["url"] == f"{gateway.url}/mcp"
    assert httpx.post(server["url"], json={}).status_code != 404


def test_nothing_is_shown_before_the_gateway_has_told_of_itself(chromium: Browser, new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": REPLIES})
    held: list[Route] = []
    with chromium.new_context() as context:
        page = context.new_page()
        page.route("**/page/state", lambda route: held.append(route))
        with page.expect_request("**/page/state"):
            page.goto(f"{gateway.url}/#connect")
        assert page.locator("#snippet").inner_text() == ""
        for each in held:
            each.continue_()
        page.locator("#snippet").get_by_role("button", name="Copy").wait_for()
        page.unroute_all(behavior="ignoreErrors")


def test_mcp_without_the_mount_names_the_command(chromium: Browser, new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": REPLIES})
    assert "agent-tools mcp config" in snippet(chromium, gateway, "MCP")
    assert httpx.get(f"{gateway.url}/page/state").json()["mcp"] is False
