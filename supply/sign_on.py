"""Signs on at the gateway with npm's newest oidc-provider and the MCP SDK's own OAuth client: `scripts/try sign-on`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import html
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from playwright.sync_api import expect, sync_playwright
from pydantic import AnyUrl

from agent_tools.testing import ScriptedServer
from supply.wires import NODE, node_folder

HERE = "http://127.0.0.1:1/"  # where users come back to; nothing listens
PUBLIC: dict[str, Any] = {"token_endpoint_auth_method": "none"}
PROVIDER = Path(__file__).with_name("oidc_provider.mjs")


class Memory:
    """What a client of MCP keeps."""

    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        """Keep the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        """Return the client."""
        return self.client

    async def set_client_info(self, client: Any) -> None:
        """Keep the client."""
        self.client = client


def main() -> int:
    """Try all; return 0 if all is right."""
    provider_port, port = free_port(), free_port()
    issuer, url = f"http://127.0.0.1:{provider_port}", f"http://127.0.0.1:{port}"
    folder = node_folder("oidc-provider", "oidc-provider")
    script = folder / PROVIDER.name
    script.write_text(PROVIDER.read_text())  # beside its packages
    with (
        running([str(NODE), str(script), str(provider_port), f"{url}/"], "ready"),
        tempfile.TemporaryDirectory(prefix="agent-tools-try-") as data,
        ScriptedServer({"m": ["Hello."]}) as model,
        gateway(port, data, model.base_url, issuer, url),
    ):
        open_page(url)
        version = json.loads((folder / "node_modules/oidc-provider/package.json").read_text())["version"]
        list_containers(url, issuer, asyncio.run(connect(url)))
        print(f"oidc-provider {version}: two users of two groups by the MCP SDK's own client, the API and the page")
    return 0


async def connect(url: str) -> dict[str, str]:
    """Two users sign on by MCP; each has a container that the other cannot use. Return their tokens."""
    memories = {name: Memory() for name in ("ann", "bob", "eve")}
    found = {name: await run_code(url, name, memories[name], code=f"who = {name!r}") for name in ("ann", "bob")}
    for name, other in (("ann", "bob"), ("bob", "ann")):
        own, memory = handle(found[name]), memories[name]
        assert name in await run_code(url, name, memory, code="print(who)", container=own)
        assert "No container found" in await run_code(url, name, memory, code="1", container=handle(found[other]))
    for name in ("ann", "bob"):
        handle(await run_code(url, name, memories[name], code="'another container'"))
    with contextlib.suppress(BaseExceptionGroup, httpx2.HTTPStatusError):
        raise AssertionError(await run_code(url, "eve", memories["eve"], code="1"))
    return {name: memory.tokens.access_token for name, memory in memories.items() if memory.tokens}


def list_containers(url: str, issuer: str, of_mcp: dict[str, str]) -> None:
    """The users of `connect` see their own containers by the API, with tokens for it; those for MCP open it not."""
    for each in of_mcp.values():
        assert httpx.get(f"{url}/v1/containers", headers=bearer(each)).status_code == 401
    seen = {name: listed(url, token(issuer, name, url)) for name in ("ann", "bob")}
    assert {name: len(each) for name, each in seen.items()} == {"ann": 1, "bob": 2}
    assert not set(seen["ann"]) & set(seen["bob"])


def open_page(url: str) -> None:
    """A user signs in on the page, and asks the model."""
    path = subprocess.check_output([PROVIDER.parents[1] / "scripts" / "lib" / "browser"], text=True).strip()
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=arguments) as browser:
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_placeholder("login").fill("ann")
        page.get_by_placeholder("password").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        page.get_by_label("Question").fill("Hi.")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".prose")).to_have_text("Hello.", timeout=60_000)


async def run_code(url: str, user: str, memory: Memory, **arguments: str) -> str:
    """Return the text of a call, by a client that signs in as this user if it must."""
    came_back: list[str] = []

    async def redirect(address: str) -> None:
        came_back.append(await asyncio.to_thread(sign_in, address, user))

    async def callback() -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(came_back[-1]).query)
        return AuthorizationCodeResult(**{name: query[name][0] for name in ("code", "state", "iss")})

    about = OAuthClientMetadata(redirect_uris=[AnyUrl(HERE)], **PUBLIC)
    auth = OAuthClientProvider(f"{url}/mcp", about, memory, redirect, callback)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=120) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        answer = await client.call_tool("run_python", dict(arguments))
        return "\n".join(getattr(block, "text", "") for block in answer.content)


def sign_in(address: str, user: str) -> str:
    """Fill the provider's forms as a user in a browser does; return the address that the browser ends at."""
    with httpx.Client(follow_redirects=False) as browser:
        answer = browser.get(address)
        while not (where := answer.headers.get("location", "")).startswith(HERE):
            if where:
                address = urljoin(address, where)
                answer = browser.get(address)
                continue
            form = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
            assert form, answer.text[:500]
            fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)"', answer.text))
            address = urljoin(address, html.unescape(form[1]))
            answer = browser.post(address, data={**fields, "login": user, "password": "any"})
        return str(where)


def token(issuer: str, user: str, resource: str) -> str:
    """Return a user's token for a resource, by a client of its own (RFC 7591, 7636, 8707)."""
    about = httpx.get(f"{issuer}/.well-known/openid-configuration").json()
    given = {"redirect_uris": [HERE], "application_type": "native", **PUBLIC}
    client = httpx.post(about["registration_endpoint"], json=given).json()["client_id"]
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {
        "client_id": client,
        "redirect_uri": HERE,
        "resource": resource,
        "response_type": "code",
        "scope": "openid code",
    }
    asked |= {"code_challenge": challenge, "code_challenge_method": "S256"}
    came_back = sign_in(f"{about['authorization_endpoint']}?{urlencode(asked)}", user)
    code = parse_qs(urlsplit(came_back).query)["code"][0]
    sent = {"grant_type": "authorization_code", "code": code, "redirect_uri": HERE, "client_id": client}
    sent |= {"code_verifier": verifier, "resource": resource}
    return str(httpx.post(about["token_endpoint"], data=sent).json()["access_token"])


def listed(url: str, key: str) -> list[str]:
    """Return the ids of a user's containers."""
    answer = httpx.get(f"{url}/v1/containers", headers=bearer(key)).raise_for_status()
    return [each["id"] for each in answer.json()["data"]]


def bearer(key: str) -> dict[str, str]:
    """Return the header of a token."""
    return {"Authorization": f"Bearer {key}"}


def handle(text: str) -> str:
    """Return the container that an answer names."""
    return str(re.findall(r"cntr_[0-9a-f]+", text)[0])


@contextlib.contextmanager
def gateway(port: int, data: str, upstream: str, issuer: str, url: str) -> Iterator[None]:
    """Serve a gateway that lets two groups in."""
    agent_tools = [sys.executable, "-m", "agent_tools"]
    for name, limits in (("few", ["--max-containers", "1"]), ("many", [])):
        command = [*agent_tools, "keys", "--data-dir", data, "add", f"team-{name}", "--group", name, *limits]
        subprocess.run(command, check=True, capture_output=True)
    settings = {"oidc_issuer": issuer, "oidc_audience": url, "oidc_groups": "groups", "oidc_scopes": "openid,code"}
    settings |= {"named_keys": "true", "oidc_client_id": "page", "pool": "0"}
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    where = ["--port", str(port), "--data-dir", data, "--upstream", upstream]
    with running([*agent_tools, "serve", *where, *given], "ready:"):
        yield


@contextlib.contextmanager
def running(command: list[str], ready: str) -> Iterator[None]:
    """Run a server until the end, once it has said that it is ready."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        assert server.stdout
        said = []
        try:
            for line in server.stdout:
                said.append(line)
                if ready in line:
                    break
            else:
                raise AssertionError("".join(said))
            yield
        finally:
            server.terminate()
            rest = server.communicate(timeout=60)[0]
            if sys.exc_info()[0]:
                print("".join(said) + rest, file=sys.stderr)


def free_port() -> int:
    """Return a port that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
