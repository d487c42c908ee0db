"""The server: answers MCP requests by the tools and the files of containers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_thread
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.keys import ANYONE
from agent_tools.containers.sentences import contents, reach
from agent_tools.errors import AgentToolsError
from agent_tools.mcp import apps, files, tasks
from agent_tools.mcp.activities import Activities
from agent_tools.mcp.activity import Prepare
from agent_tools.mcp.answers import failed, file_of, mime_of
from agent_tools.mcp.config import McpLimits
from agent_tools.mcp.handles import Stock
from agent_tools.mcp.names import TEMPLATE, read_uri
from agent_tools.mcp.services import McpCall, McpServices, ToolAnswer, is_ours
from agent_tools.mcp.skills import SkillResources
from agent_tools.mcp.tools import TOOLS, McpTool
from agent_tools.mcp.tracing import traced
from agent_tools.skills.skill import with_catalogue
from agent_tools.tracing import configured_provider
from agent_tools.version import __version__

Context = ServerRequestContext[McpServices, Any]
NAME = "agent-tools"
FLUSH_MILLISECONDS = 2_000  # for the last spans, when a server stops
_LASTING = CacheHint(3_600_000, "public")  # milliseconds: these lists change with the version only
_PRIVATE = CacheHint(3_600_000, "private")  # and this one with what a client shows
_INSTRUCTIONS = (
    "Runs code in containers without access to the host. Every answer names its container: pass it on to keep "
    "variables and files. The answer to long code has the status `running`; call `wait` for the rest. "
    f"Files of the working directory are resources, {TEMPLATE}."
)
_USUAL = " Calls without `container` share one."


def make_server(stock: Stock, prepare: Prepare, bounds: McpLimits, tracing: Any = None) -> Server[McpServices]:
    """Return a server for these containers. `tracing` is a TracerProvider, by default the environment's."""
    provider = tracing or configured_provider()

    @asynccontextmanager
    async def lifespan(_: Server[McpServices]) -> AsyncIterator[McpServices]:
        async with anyio.create_task_group() as group:
            activities = Activities(group, bounds)
            try:
                yield McpServices(stock, prepare, activities, bounds)
            finally:
                await activities.close()
                if provider:
                    await anyio.to_thread.run_sync(provider.force_flush, FLUSH_MILLISECONDS)

    everything, skills = _shown(stock, bounds), SkillResources(stock.containers.config.known_skills)
    for_models = [tool for tool in everything.tools if not TOOLS[tool.name].is_for_page]

    async def list_tools(context: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        return everything if _call(context).has_page else ListToolsResult(tools=for_models)

    async def read(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        resource = skills.resource(str(params.uri))
        return ReadResourceResult(contents=[resource]) if resource else await read_resource(context, params)

    schemas = {tool.name: tool.input_schema for tool in everything.tools}
    server = Server(
        NAME,
        version=__version__,
        title="Code interpreter",
        instructions=_INSTRUCTIONS + _USUAL * stock.is_alone,
        cache_hints={"tools/list": _PRIVATE, "prompts/list": _LASTING, "resources/templates/list": _LASTING},
        lifespan=lifespan,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=cast("Any", call_tool),  # the library passes the results of extensions on, and has no type for it
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_list_prompts=list_prompts,
        on_read_resource=read,
    )
    server.middleware[:] = [partial(traced, provider, tuple(schemas))] if provider else []
    skills.add_to(server)
    if bounds.apps:
        server.extensions[apps.EXTENSION] = {}
    if bounds.tasks:
        server.extensions[tasks.EXTENSION] = {}
        for method in ("get", "update", "cancel"):
            server.add_request_handler(f"tasks/{method}", tasks.TaskParams, answer_task)
    return server


async def call_tool(context: Context, params: CallToolRequestParams) -> ToolAnswer:
    """Call a tool; a failure becomes an answer that the model reads."""
    tool, call = TOOLS.get(params.name), _call(context)
    if tool is None or (tool.is_for_page and not call.has_page):
        known = ", ".join(name for name, each in TOOLS.items() if not each.is_for_page)
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name[:80]}. Known: {known}.")
    try:
        return await tool.call(call, tool.read(params.name, params.arguments))
    except AgentToolsError as exc:
        return failed(call.reason(exc))


async def list_resources(context: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
    """List the newest files if the server has only one client; a shared server lists none.

    `_meta` says whether these are all.
    """
    call = _call(context)
    usual = call.services.handles.usual
    newest, is_complete = await files.first_files(call, usual) if usual else ([], True)
    found = [file_of(usual, *each) for each in newest]
    resources = [Resource(name=each.path, uri=each.uri, size=each.size, mime_type=mime_of(each.path)) for each in found]
    return ListResourcesResult(resources=resources, _meta={"agent_tools/is_complete": is_complete})


async def list_templates(_: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    """Tell the form of the resources' URIs."""
    template = ResourceTemplate(
        name="file", title="File in a container", uri_template=TEMPLATE, description="A file in the working directory."
    )
    return ListResourceTemplatesResult(resource_templates=[template])


async def list_prompts(_: Context, __: PaginatedRequestParams | None) -> ListPromptsResult:
    """List no prompts: some clients ask even if the server has none."""
    return ListPromptsResult(prompts=[])


async def read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
    """Read a file of a container, or one of the page that shows answers.

    Raises:
        MCPError: there is none (invalid params, as the protocol has it), or it cannot be given.
    """
    call, services = _call(context), context.lifespan_context
    try:
        if services.bounds.apps and str(params.uri).startswith(apps.BASE):
            folder = services.stock.containers.config.figures
            if page := await anyio.to_thread.run_sync(apps.page_resource, str(params.uri), folder):
                return ReadResourceResult(contents=[page])
        container, path = read_uri(str(params.uri))
        return ReadResourceResult(contents=[await files.contents_of(call, container, path)])
    except AgentToolsError as exc:
        code = INTERNAL_ERROR if is_ours(exc) else INVALID_PARAMS
        raise MCPError(code, call.reason(exc), {"uri": str(params.uri)[:200]}) from exc


async def answer_task(context: Context, params: tasks.TaskParams) -> dict[str, Any]:
    """Return the state of a task, or end its run; variables stay. Tasks ask nothing, so updates are ignored.

    Raises:
        MCPError: the client does not declare tasks, or has no such task.
    """
    call = _call(context)
    if not call.takes_tasks:
        raise tasks.undeclared()
    task = call.services.tasks.find(call.owner, params.task_id)
    if context.method == "tasks/cancel":
        await task.cancel()
    return {"resultType": "complete", **(task.state() if context.method == "tasks/get" else {})}


def _call(context: Context) -> McpCall:
    """Return the call of a request: its owner is set by the HTTP server, or is the only client on stdio."""
    owner = context.request.scope["owner"] if context.request else ANYONE

    async def report(seconds: float, message: str) -> None:
        await context.session.report_progress(round(seconds, 1), message=message)

    known = context.session.client_capabilities
    extensions = (known and known.extensions) or {}
    bounds, is_modern = context.lifespan_context.bounds, context.protocol_version in MODERN_PROTOCOL_VERSIONS
    has_page = bounds.apps and apps.EXTENSION in extensions
    takes_tasks = bounds.tasks and is_modern and tasks.EXTENSION in extensions
    return McpCall(context.lifespan_context, owner, report, has_page, takes_tasks)


def _shown(stock: Stock, bounds: McpLimits) -> ListToolsResult:
    """Return the list of tools; their descriptions name the packages and the network of containers."""
    config = stock.containers.config
    told = {"within": bounds.answer_within, "contents": contents(config), "network": reach(" ".join(stock.domains))}
    return ListToolsResult(
        tools=[
            tool.shown(
                name,
                _description(name, tool, config, told),
                is_sealed=not stock.domains,
                has_page=bounds.apps,
            )
            for name, tool in TOOLS.items()
        ]
    )


def _description(name: str, tool: McpTool, config: ContainersConfig, told: Mapping[str, object]) -> str:
    """Return the description of a tool. Tools that can read a skill name the skills."""
    skills = config.known_skills if name in ("run_python", "run_command") else ()
    return with_catalogue(tool.description.format(**told), skills)
