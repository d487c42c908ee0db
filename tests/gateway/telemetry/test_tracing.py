"""Spans of turns, the model's replies and calls, and the traces that they are part of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from agent_tools.gateway.spans import TurnSpans
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, code, post, until
from tests.gateway.conftest import New, NewGateway
from tests.gateway.remote_mcp.server import tool_server
from tests.recorder import HeldRefusal

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def test_spans_have_the_names_and_attributes_of_the_conventions_and_nothing_said(
    new_gateway: NewGateway, exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    gateway = new_gateway({"m": [code("1/0  # canary"), ScriptedReply(text="canary")]}, tracing=tracing)
    post(gateway, input="canary")
    call, first, last, turn = sorted(
        exporter.get_finished_spans(), key=lambda span: (span.name[:1] != "e", span.end_time)
    )
    assert [span.name for span in (call, first, last, turn)] == [
        "execute_tool python",
        "chat m",
        "chat m",
        "invoke_agent agent-tools",
    ]
    assert {parent(span) for span in (call, first, last)} == {turn.context.span_id}
    assert call.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "python",
        "gen_ai.tool.call.id": call.attributes["gen_ai.tool.call.id"],
        "gen_ai.tool.type": "extension",
        "error.type": "error",
    }
    assert call.status.status_code is StatusCode.ERROR
    assert first.kind is SpanKind.CLIENT
    assert first.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": first.attributes["gen_ai.usage.output_tokens"],
        "server.address": "127.0.0.1",
        "server.port": first.attributes["server.port"],
    }
    assert first.end_time <= call.start_time, "the time of a call is no time of the model's"
    assert turn.attributes["agent_tools.turn.reason"] == "stop"
    assert "canary" not in "".join(span.to_json() for span in exporter.get_finished_spans())


class Begun(SpanProcessor):
    """Counts spans that have begun."""

    number = 0

    def on_start(self, *_: Any, **__: Any) -> None:
        self.number += 1


def test_a_refused_message_leaves_no_span_without_an_end(
    new: New, exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    gateway, upstream = new(tracing=tracing, max_responses=1)
    upstream.answer = held = HeldRefusal()
    tracing.add_span_processor(begun := Begun())
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
    ask = partial(httpx.post, f"{gateway.url}/v1/messages", json=body, timeout=60)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask)
        held.is_asked.wait()
        assert ask().status_code == 429
        held.is_free.set()
        first.result()
    until(lambda: gateway.app.state.jobs.active == 0)
    assert begun.number == len(exporter.get_finished_spans())


def test_a_trace_goes_from_the_client_to_the_model_s_server_and_to_remote_mcp_servers(
    new_gateway: NewGateway, exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    calls = ScriptedReply(calls=[ScriptedCall("box__add", {"a": 1, "b": 2}, "c1")])
    with tool_server() as server:
        gateway = new_gateway({"m": [calls, "Done."]}, tracing=tracing, mcp_servers=(server.entry,))
        body = {"model": "m", "input": "Go.", "tools": [CODE_TOOL, server.tool()]}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "canary=1"}
        httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, timeout=60)
    spans = {f"{span.context.span_id:016x}": span for span in exporter.get_finished_spans()}
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    (turn,) = [span for span in spans.values() if span.name.startswith("invoke_agent")]
    assert parent(turn) == int(PARENT, 16)
    sent = [headers["traceparent"].split("-") for headers in gateway.upstream.headers]  # type: ignore[attr-defined]
    assert [(trace, spans[span].name) for _, trace, span, _ in sent] == [(TRACE, "chat m")] * 2
    assert not any("baggage" in headers for headers in gateway.upstream.headers)  # type: ignore[attr-defined]
    (called,) = server.traces
    assert (called.split("-")[1], spans[called.split("-")[2]].name) == (TRACE, "execute_tool box__add")


def test_a_turn_that_fails_says_so_in_its_spans(
    new_gateway: NewGateway, exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    gateway = new_gateway({"m": [ScriptedReply(status=400, error="canary")]}, tracing=tracing)
    post(gateway)
    chat, turn = exporter.get_finished_spans()
    assert [chat.name, turn.name] == ["chat m", "invoke_agent agent-tools"]
    for span in (chat, turn):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes
        assert span.attributes["error.type"]
        assert "gen_ai.usage.input_tokens" not in span.attributes, "what is not known is no zero"
    assert "canary" not in chat.to_json() + turn.to_json()


def test_without_a_client_s_trace_or_with_one_that_is_not_valid_a_turn_has_its_own(
    new_gateway: NewGateway, exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    gateway = new_gateway({"m": ["Yes.", "Yes."]}, tracing=tracing)
    for headers in ({}, {"traceparent": "canary"}):
        httpx.post(f"{gateway.url}/v1/responses", json={"model": "m", "input": "Go."}, headers=headers, timeout=60)
    turns = [span for span in exporter.get_finished_spans() if span.name.startswith("invoke_agent")]
    assert [span.parent for span in turns] == [None, None]
    assert len({span.context.trace_id for span in turns}) == 2


def test_a_turn_that_never_began_has_a_span_of_its_own_alone(
    exporter: InMemorySpanExporter, tracing: TracerProvider
) -> None:
    TurnSpans(tracing, "m", "http://127.0.0.1:1/v1").end("server_error")
    (turn,) = exporter.get_finished_spans()
    assert turn.attributes
    assert turn.attributes["error.type"] == "server_error"
