"""Spans of an MCP server's requests, in the traces of its clients."""

from __future__ import annotations

from contextlib import suppress

from mcp import Client
from mcp.shared.exceptions import MCPError
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.mcp_door.conftest import Converse

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traced(converse: Converse) -> dict[str, ReadableSpan]:
    """Return the spans of three requests by name."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def talk(client: Client) -> None:
        await client.call_tool(
            "run_python",
            {"code": "1/0  # canary", "container": "canary"},
            meta={"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "canary=1"},
        )
        with suppress(MCPError):
            await client.call_tool("canary", {}, meta={"traceparent": "canary"})
        await client.list_resource_templates()

    converse(talk, tracing=provider)
    spans = exporter.get_finished_spans()
    assert "canary" not in "".join(span.to_json() for span in spans)
    return {span.name: span for span in spans}


def test_a_call_is_a_span_of_the_conventions_in_the_trace_of_the_client(converse: Converse) -> None:
    call = traced(converse)["tools/call run_python"]
    assert call.parent
    assert call.attributes
    assert call.kind is SpanKind.SERVER
    assert (f"{call.context.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, PARENT)
    assert call.attributes == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": call.attributes["mcp.protocol.version"],
        "jsonrpc.request.id": call.attributes["jsonrpc.request.id"],
        "network.transport": "pipe",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "run_python",
        "error.type": "tool_error",
    }
    assert call.status.status_code is StatusCode.ERROR


def test_an_unknown_tool_is_an_error_without_its_name(converse: Converse) -> None:
    refused = traced(converse)["tools/call"]
    assert refused.attributes
    assert refused.attributes["error.type"] == refused.attributes["rpc.response.status_code"] == "-32602"
    assert refused.status.description is None
