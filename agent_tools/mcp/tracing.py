"""Spans of requests by OpenTelemetry's conventions for MCP: names, numbers and statuses, nothing anyone said.

The SDK has a middleware for that, too; its statuses and events may quote what people and code say, so it is not used.
"""

from __future__ import annotations

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from opentelemetry.trace import SpanKind

from agent_tools import tracing

NAME = "agent_tools.mcp"


class TracingMiddleware:
    """Makes a span of each request, in the trace that the client names in `_meta`. `provider` is a TracerProvider."""

    def __init__(self, provider: Any, tools: frozenset[str]) -> None:
        self._provider = provider
        self._tools = tools

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Serve one request."""
        attributes: dict[str, Any] = {
            "mcp.method.name": ctx.method,
            "mcp.protocol.version": ctx.protocol_version,
            "network.transport": "tcp" if ctx.request else "pipe",
        }
        if ctx.request_id is not None:
            attributes["jsonrpc.request.id"] = str(ctx.request_id)[:128]
        tool = (ctx.params or {}).get("name") if ctx.method == "tools/call" else None
        if tool in self._tools:  # another name is what a client says
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        name = f"{ctx.method} {tool}" if tool in self._tools else ctx.method
        parent = tracing.context_of(ctx.meta)
        tracer = self._provider.get_tracer(NAME)
        with tracer.start_as_current_span(
            name,
            parent,
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
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
