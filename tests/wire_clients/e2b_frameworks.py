"""Frameworks by E2B's protocol: smolagents' executor by the two variables, LiteLLM's provider by the domain form."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from urllib.parse import urlsplit

import httpx

os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = f"{os.environ['GATEWAY']}/e2b"
os.environ["E2B_API_KEY"] = os.environ["GATEWAY_KEY"]
os.environ["E2B_VALIDATE_API_KEY"] = "false"

from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
from litellm.llms.e2b.sandbox.transformation import E2BSandboxConfig
from smolagents import CodeAgent
from smolagents.models import ChatMessage, MessageRole, Model

GATEWAY = urlsplit(os.environ["GATEWAY"])
KEY = os.environ["GATEWAY_KEY"]


class Proxy(httpx.AsyncHTTPTransport):
    """A proxy with a wildcard: every name of the domain leads to the gateway's /e2b, and the name stays as the Host."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on."""
        path = b"/e2b" + request.url.raw_path
        request.url = request.url.copy_with(
            scheme="http", host=GATEWAY.hostname, port=GATEWAY.port, raw_path=path
        )  # the header Host is written already
        return await super().handle_async_request(request)


async def by_litellm() -> None:
    """Make a sandbox, run code in it, and delete it."""
    provider, client = E2BSandboxConfig(), AsyncHTTPHandler()
    client.client = httpx.AsyncClient(transport=Proxy(), timeout=60)
    made = await provider.acreate_sandbox(api_key=KEY, api_base="https://api.sandboxes.test", client=client)
    ran = await provider.arun_code(container=made, code="print(6 * 7)\n'text'", client=client)
    assert (ran.stdout, ran.results[0]["text"], ran.error) == ("42\n", "text", None), ran
    failed = await provider.arun_code(container=made, code="1 / 0", client=client)
    assert failed.error, failed
    assert failed.error["name"] == "ZeroDivisionError", failed
    assert await provider.adelete_sandbox(container=made, client=client)


class Scripted(Model):
    """A model that writes two pieces of code."""

    turns = 0

    def generate(self, *_: object, **__: object) -> ChatMessage:
        """Return the next piece."""
        self.turns += 1
        code = "x = 41\nprint(x)" if self.turns == 1 else "final_answer(x + 1)"
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on.\n<code>\n{code}\n</code>")


def by_smolagents() -> None:
    """Have an agent run code in a sandbox in two steps."""
    with CodeAgent([], Scripted(), executor_type="e2b", max_steps=3) as agent:
        assert agent.run("Go.") == 42


asyncio.run(by_litellm())
by_smolagents()
print(f"litellm {version('litellm')} and smolagents {version('smolagents')}: their providers of E2B work")
