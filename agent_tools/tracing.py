"""OpenTelemetry tracing, active if it is installed and the environment names a receiver of spans.

A trace context is `traceparent` and `tracestate` of W3C Trace Context, in HTTP headers or in MCP's `_meta`.
Baggage is neither read nor sent on: it may hold anything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from agent_tools import settings

try:  # an optional extra; without it there is no provider either
    from opentelemetry.context import attach
    from opentelemetry.trace import StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _propagator = None
else:
    _propagator = TraceContextTextMapPropagator()

_log = logging.getLogger(__name__)


def configured_provider() -> Any:
    """Return a TracerProvider that sends spans in batches as OTLP over HTTP, as the environment configures it.

    None if it configures none or a package is missing.
    """
    if not settings.is_tracing_wanted():
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # few have it installed
        from opentelemetry.sdk import resources, trace  # nor this
    except ImportError as exc:
        _log.warning(
            "No spans are sent: %s. Install opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http.", exc
        )
        return None
    ours = resources.Resource({"service.name": "agent-tools"})
    named = resources.OTELResourceDetector().detect()
    provider = trace.TracerProvider(resource=resources.Resource.create().merge(ours).merge(named))
    provider.add_span_processor(trace.export.BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def context_of(carrier: Mapping[str, Any] | None) -> Any:
    """Return the trace context that a client sent; the current one if it sent none or an invalid one."""
    texts = {name: value for name, value in (carrier or {}).items() if isinstance(value, str)}
    assert _propagator
    return _propagator.extract(texts)


def continue_trace(carrier: Mapping[str, Any]) -> None:
    """Continue a client's trace in this task or thread from now on."""
    attach(context_of(carrier))


def make_current(span: Any) -> None:
    """Make a span the parent of all spans and requests that this thread or task starts from now on."""
    attach(set_span_in_context(span))


def mark(span: Any, error_type: str) -> None:
    """Mark a span as failed, by the kind of the error alone."""
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


def send_context(request: Any) -> None:
    """Add the current trace context to the headers of an HTTP request; no change if there is no current span."""
    if _propagator:
        _propagator.inject(request.headers)
