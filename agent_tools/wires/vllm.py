"""The tool server of vLLM: `vllm serve MODEL --tool-server HOST:PORT/vllm` gives gpt-oss a sealed, stateful Python.

vLLM speaks MCP over server-sent events, takes the server's name for the tool's namespace, and opens a connection for
each response, with its id in `x-session-id`. A response's container ends with its last connection. A request of a user
may name a chat by the header `x-chat-id`: its container keeps variables and files from one response to the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_tools.bodies.bounded_app import BoundedBodies
from agent_tools.containers.containers import Containers
from agent_tools.containers.mount import Mount
from agent_tools.containers.records import NAMED
from agent_tools.containers.rows import Rows
from agent_tools.containers.sentences import contents
from agent_tools.containers.spec import ContainerSpec
from agent_tools.errors import AgentToolsError
from agent_tools.limits import MIB
from agent_tools.results.execution import Execution
from agent_tools.runtime.in_thread import in_thread, to_its_end
from agent_tools.skills.skill import with_catalogue
from agent_tools.version import __version__
from agent_tools.wires.open_resources import CodeRun
from agent_tools.wires.routing import digest

MAX_BODY = 4 * MIB
NAME = "python"
_INSTRUCTIONS = (
    "Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool "
    "should be used for internal reasoning, but not for code that is intended to be visible to the user. When you send "
    "a message containing Python code to python, it will be executed in a stateful Jupyter notebook environment, whose "
    "variables and files stay for the next message. There is no network. {contents}"
)
_CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_HIDDEN: Any = {"include_in_prompt": False}  # the model writes plain code, which needs no schema
_TOOLS = [
    Tool(name=NAME, description="Runs Python.", input_schema=_CODE, _meta=_HIDDEN),
    Tool(name="cleanup_session", description="Ends the session.", input_schema={"type": "object"}, _meta=_HIDDEN),
]


class _Session:
    """The container of one response or chat; its first code creates it."""

    def __init__(self, containers: Containers[Any], owner: str, id_: str, *, is_chat: bool) -> None:
        self.owner = owner
        self.is_chat = is_chat
        self.spec = ContainerSpec(digest(id_, str(is_chat))[:40], origin=f"{NAMED}vllm")
        self._containers = containers

    def container(self) -> str:
        """Return the id of the container, which is made if there is none. It blocks: for a thread."""
        return self._containers.named(self.owner, self.spec, self._containers.config.max_containers).id

    async def run(self, code: str) -> str:
        """Run code; return the answer for the model."""
        run = CodeRun()
        done, note = await in_thread(lambda: run.run(self._containers, self.container(), code), run.cancel)
        return f"{note}\n{_text(done)}" if note else _text(done)

    def end(self) -> None:
        """Delete the container, but for a chat's, which expires. It blocks: for a thread."""
        row = None if self.is_chat else self._containers.find_named(self.owner, self.spec.origin, self.spec.name)
        if row:
            self._containers.discard(self.owner, row.id)


def _text(done: Execution) -> str:
    """Return the output, value and error of code as text, as a notebook shows it."""
    parts = [done.stdout, done.stderr, done.shown, done.error.text if done.error else ""]
    figures = [f"[{len(done.pictures)} figures, which cannot be shown here]"] if done.pictures else []
    shown = "\n".join(part.rstrip("\n") for part in (*parts, *figures, *done.notes) if part.strip())
    return shown or "[no output: use print()]"


def _server(session: _Session, instructions: str) -> Server[Any]:
    async def list_tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=_TOOLS)

    async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
        code = (params.arguments or {}).get("code")
        if params.name == "cleanup_session":
            await to_its_end(session.end)
            return _said("The session is over.")
        if params.name != NAME or not isinstance(code, str):
            return _said("Call python with its code, a text.", is_error=True)
        try:
            return _said(await session.run(code))
        except AgentToolsError as exc:
            return _said(str(exc), is_error=True)

    server: Server[Any] = Server(
        NAME, version=__version__, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool
    )
    server.middleware.clear()  # traces, which would contain text of people and code
    return server


def _said(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=is_error)


@asynccontextmanager
async def _opened(containers: Containers[Any], _: Rows) -> AsyncIterator[ASGIApp]:
    transport = SseServerTransport("/messages", max_request_body_size=MAX_BODY)
    config = containers.config
    instructions = with_catalogue(_INSTRUCTIONS.format(contents=contents(config)), config.known_skills)
    messages = BoundedBodies(transport.handle_post_message, MAX_BODY)
    open_ = list[tuple[str, str]]()

    async def connect(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        chat, id_ = headers.get("x-chat-id", ""), headers.get("x-session-id") or f"none-{id(scope)}"
        session = _Session(containers, scope["owner"], chat or id_, is_chat=bool(chat))
        key = session.owner, session.spec.name
        open_.append(key)
        try:
            async with transport.connect_sse(scope, receive, send) as (read, write):
                server = _server(session, instructions)
                await server.run(read, write, server.create_initialization_options())
        finally:
            open_.remove(key)
            if key not in open_:
                await to_its_end(session.end)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        token = AccessToken(token="", client_id=scope.get("owner", ""), scopes=[])
        scope = {**scope, "user": AuthenticatedUser(token)}  # only this owner may use the session
        match scope["type"], scope["path"].removeprefix(scope["root_path"]):
            case "http", "/sse":
                await connect(scope, receive, send)
            case "http", "/messages":
                await messages(scope, receive, send)
            case "http", _:
                await Response("Not Found", 404)(scope, receive, send)

    yield serve


MOUNT = Mount("/vllm", _opened, has_tree=True)
