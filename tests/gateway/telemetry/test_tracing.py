"""Spans of turns, rounds and calls."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_tools.gateway.telemetry.tracing import Tracer
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import code, post
from tests.gateway.conftest import NewGateway


def test_spans_tell_of_turns_rounds_and_calls_and_of_nothing_said(new_gateway: NewGateway) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    gateway = new_gateway({"m": [code("1/0  # canary"), ScriptedReply(text="canary")]}, tracer=Tracer(provider))
    post(gateway, input="canary")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["execute_tool", "round", "round", "turn"]
    assert {span.parent.span_id for span in spans[:-1] if span.parent} == {spans[-1].context.span_id}
    assert spans[0].attributes == {"tool.ok": False}
    assert spans[1].attributes is not None
    assert spans[1].attributes["gen_ai.usage.input_tokens"] == 10
    assert "canary" not in "".join(span.to_json() for span in spans)
