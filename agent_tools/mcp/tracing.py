"""Spans of requests by OpenTelemetry's conventions for MCP: names, numbers and statuses, nothing anyone said.

The SDK has a middleware for that, too; its statuses and events may quote what people and code say, so it is not used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from opentelemetry.trace import SpanKind

from agent_tools import tracing

NAME = "agent_tools.mcp"


async def traced(
    provider: Any, tools: Collection[str], ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    """Serve a request in a span, in the trace that the client names in `_meta`. `provider` is a TracerProvider."""
    attributes: dict[str, Any] = {
        "mcp.method.name": ctx.method,
        "mcp.protocol.version": ctx.protocol_version,
        "network.transport": "tcp" if ctx.request else "pipe",
    }
    if ctx.request_id is not None:
        attributes["jsonrpc.request.id"] = str(ctx.request_id)[:128]
    tool, name = (ctx.params or {}).get("name"), ctx.method
    if ctx.method == "tools/call" and tool in tools:  # another name is what a client says
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        name = f"{ctx.method} {tool}"
    silent = {"record_exception": False, "set_status_on_exception": False}
    with provider.get_tracer(NAME).start_as_current_span(
        name, tracing.context_of(ctx.meta), SpanKind.SERVER, attributes, **silent
    ) as span:
        try:
            result = await call_next(ctx)
        except MCPError as exc:
            code = str(exc.error.code)
            span.set_attribute("rpc.response.status_code", code)
            tracing.mark(span, code)
            raise
        except Exception as exc:
            tracing.mark(span, type(exc).__name__)
            raise
        match result:
            case CallToolResult(is_error=True) | {"isError": True}:
                tracing.mark(span, "tool_error")
        return result
