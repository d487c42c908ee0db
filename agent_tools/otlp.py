"""Send spans as OTLP over HTTP to the address in the environment. Imports OpenTelemetry's SDK."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk import resources, trace


def provider() -> trace.TracerProvider:
    """Return a provider that sends spans in batches, as the service named by OTEL_SERVICE_NAME."""
    ours = resources.Resource({"service.name": "agent-tools"})
    named = resources.OTELResourceDetector().detect()
    made = trace.TracerProvider(resource=resources.Resource.create().merge(ours).merge(named))
    made.add_span_processor(trace.export.BatchSpanProcessor(OTLPSpanExporter()))
    return made
