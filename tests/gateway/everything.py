"""One of every kind of thing that a gateway sends, each with the type that describes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx

from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import (
    CODE_TOOL,
    DRAW,
    EXECUTE,
    FUNCTION,
    INCLUDE,
    ask,
    chunks,
    code,
    commands,
    post,
    run,
    shell,
    stream,
)
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.remote_mcp.server import tool_server
from tests.gateway.valid import SHELL

Sent = tuple[str, dict[str, Any]]
"""The type's name below `openai.types`, and what was sent; 'event' is any event of a stream, SHELL one with a shell."""

LINK = ScriptedReply(text="See [it](sandbox:/mnt/data/a.csv).", reasoning="Hm.")
BOTH = [ScriptedCall("python", {"code": "1/0"}, "a"), ScriptedCall("weather", {"city": "Ulm"}, "b")]


def adding(request: dict[str, Any], arguments: dict[str, int]) -> ScriptedReply:
    """A call of a server's tool, and an answer after it."""
    is_answered = request["messages"][-1]["role"] == "tool"
    return ScriptedReply("Ok.") if is_answered else ScriptedReply(calls=[ScriptedCall("box__add", arguments)])


def everything(new_gateway: NewGateway) -> Iterator[Sent]:
    """Ask a gateway for all of it."""
    go_on = threading.Event()
    gateway = new_gateway(
        {
            "code": [code("open('a.csv', 'w').write('a'); print(1); 2"), code(DRAW), LINK],
            "both": lambda _: ScriptedReply(calls=BOTH),
            "bad": [ScriptedReply(calls=[ScriptedCall("python", '{"code": ')]), "Sorry."],
            "cut": lambda _: ScriptedReply(text="Half of it", piece=2, cut_after=3),
            "shell": [commands("echo a; nothing", "sleep 9", limits={"timeout_ms": 300}), "Ok."],
            "own shell": [commands("ls")],
            "mcp": lambda request: adding(request, {"a": 2, "b": 3}),
            "bad mcp": lambda request: adding(request, {}),
            "long": lambda _: ScriptedReply(text="Half of", finish_reason="length"),
            "chat": lambda request: run("1") if request["messages"][-1]["role"] == "user" else ScriptedReply(text="1"),
            "slow": [ScriptedReply(text="Ok.", wait_before=go_on)],
        }
    )
    yield from _responses(gateway)
    yield from _background(gateway, go_on)
    yield from _remote_tools(gateway)
    yield from _containers(gateway)
    yield from _conversations(gateway)
    yield from _completions(gateway)


def _responses(gateway: Gateway) -> Iterator[Sent]:
    tools = [CODE_TOOL, FUNCTION]
    for model in ("code", "both", "bad", "cut", "long"):
        for event in stream(gateway, model=model, include=INCLUDE, tools=tools, metadata={"a": "b"}):
            yield "event", event
    for model, environment in (("shell", {}), ("own shell", {"type": "local"})):
        for event in stream(gateway, model=model, tools=[shell(**environment)]):
            yield SHELL, event
    first = post(gateway, model="both", tools=tools).json()
    yield "responses.Response", first
    yield "responses.Response", post(gateway, model="long", previous_response_id=first["id"], tools=[]).json()
    yield "responses.Response", httpx.get(f"{gateway.url}/v1/responses/{first['id']}").json()
    yield (
        "responses.ResponseItemList",
        httpx.get(f"{gateway.url}/v1/responses/{first['id']}/input_items").json(),
    )


def _background(gateway: Gateway, go_on: threading.Event) -> Iterator[Sent]:
    begun = post(gateway, model="slow", background=True).json()
    yield "responses.Response", begun
    url = f"{gateway.url}/v1/responses/{begun['id']}"
    yield "responses.Response", httpx.get(url).json()
    yield "responses.Response", httpx.post(f"{url}/cancel", timeout=30).json()
    go_on.set()
    yield "responses.Response", httpx.get(url).json()


def _containers(gateway: Gateway) -> Iterator[Sent]:
    url = f"{gateway.url}/v1"
    container = httpx.post(f"{url}/containers", json={"name": "a", "memory_limit": "4g"}).json()
    yield "ContainerCreateResponse", container
    yield "ContainerRetrieveResponse", httpx.get(f"{url}/containers/{container['id']}").json()
    yield "ContainerListResponse", httpx.get(f"{url}/containers").json()["data"][0]
    files = f"{url}/containers/{container['id']}/files"
    file = httpx.post(files, files={"file": ("a.txt", b"a")}).json()
    yield "containers.FileCreateResponse", file
    yield "containers.FileRetrieveResponse", httpx.get(f"{files}/{file['id']}").json()
    yield "containers.FileListResponse", httpx.get(files).json()["data"][0]
    upload = httpx.post(f"{url}/files", files={"file": ("a.txt", b"a")}, data={"purpose": "user_data"}).json()
    yield "FileObject", upload
    yield "FileDeleted", httpx.delete(f"{url}/files/{upload['id']}").json()


def _remote_tools(gateway: Gateway) -> Iterator[Sent]:
    """The tools of an MCP server: called, failed, asked about, and one server that does not answer."""
    with tool_server() as server:
        reach = gateway.services.mcp_servers = AllowedServers([server.entry, "127.0.0.1:9"])
        assert reach
        away = server.tool(server_label="away", server_url="http://127.0.0.1:9/mcp")
        for model in ("mcp", "bad mcp"):
            for event in stream(gateway, model=model, tools=[server.tool(), away]):
                yield SHELL, event
        asked = stream(gateway, model="mcp", tools=[server.tool(require_approval="always")])
        yield from (("event", event) for event in asked)
        body = asked[-1]["response"]
        answer = {"type": "mcp_approval_response", "approval_request_id": body["output"][-1]["id"], "approve": True}
        made = post(gateway, model="long", tools=[server.tool()], input=[answer], previous_response_id=body["id"])
        yield "responses.Response", made.json()


def _conversations(gateway: Gateway) -> Iterator[Sent]:
    url = f"{gateway.url}/v1/conversations"
    said = [{"role": role, "content": "Hello."} for role in ("user", "assistant", "developer")]
    made = httpx.post(url, json={"items": said, "metadata": {"a": "b"}}).json()
    yield "conversations.Conversation", made
    one = f"{url}/{made['id']}"
    for event in stream(gateway, model="both", tools=[CODE_TOOL, FUNCTION], conversation=made["id"], include=INCLUDE):
        yield "event", event
    yield "responses.Response", post(gateway, model="long", conversation=made["id"], tools=[]).json()
    items = httpx.get(f"{one}/items").json()
    yield "conversations.ConversationItemList", items
    yield "conversations.Conversation", httpx.delete(f"{one}/items/{items['first_id']}").json()
    yield "conversations.Conversation", httpx.post(one, json={"metadata": {}}).json()
    yield "conversations.ConversationDeletedResource", httpx.delete(one).json()


def _completions(gateway: Gateway) -> Iterator[Sent]:
    yield "chat.ChatCompletion", ask(gateway, model="chat", tools=[EXECUTE]).json()
    for chunk in chunks(ask(gateway, model="chat", stream=True, stream_options={"include_usage": True})):
        yield "chat.ChatCompletionChunk", chunk
