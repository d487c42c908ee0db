"""Spans of OpenTelemetry for turns, rounds and calls: names, numbers and statuses, nothing that anyone said.

Spans are sent if OpenTelemetry's SDK is installed and an OTEL_* variable names their destination.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from agent_tools import settings
from agent_tools.agents.steps import CallDone, CallRunning, Finished, RoundDone, Step
from agent_tools.gateway.upstream import MAX_MODEL_ID

with contextlib.suppress(ImportError):  # an extra: without it there is no tracer either
    from opentelemetry.trace import set_span_in_context

NAME = "agent_tools.gateway"


class Tracer:
    """Makes the spans of turns. `provider` is a TracerProvider; by default as the environment configures it."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider or _configured()

    def turn(self, model: str) -> TurnSpans:
        """Return the spans of one turn that begins now."""
        return TurnSpans(self._provider.get_tracer(NAME) if self._provider else None, model)

    def close(self) -> None:
        """Send the rest of the spans."""
        if self._provider:
            self._provider.shutdown()


class TurnSpans:
    """One span for a turn, below it one for each round and each call. For one thread."""

    def __init__(self, tracer: Any, model: str) -> None:
        self._tracer = tracer
        self._calls: dict[str, Any] = {}
        self._round_start = time.time_ns()
        self._turn = (
            tracer.start_span("turn", attributes={"gen_ai.request.model": model[:MAX_MODEL_ID]}) if tracer else None
        )

    def step(self, step: Step) -> None:
        """Start, end or mark spans by a step."""
        if self._turn is None:
            return
        match step:
            case CallRunning(id_):
                self._calls[id_] = self._child("execute_tool", None)
            case CallDone(call=call) if call.id in self._calls:
                span = self._calls.pop(call.id)
                span.set_attribute("tool.ok", step.execution.ok if step.execution else not step.failure)
                span.end()
            case RoundDone(number=number, usage=usage):
                span = self._child("round", self._round_start)
                span.set_attribute("round", number)
                span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens if usage else 0)
                span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens if usage else 0)
                span.end()
                self._round_start = time.time_ns()
            case Finished(reason=reason):
                self._turn.set_attribute("turn.reason", reason)

    def end(self) -> None:
        """End all spans of the turn."""
        if self._turn is not None:
            for span in self._calls.values():
                span.end()
            self._turn.end()

    def _child(self, name: str, start: int | None) -> Any:
        return self._tracer.start_span(name, set_span_in_context(self._turn), start_time=start)


def _configured() -> Any:
    """Return a provider as the environment configures it; None if it does not, or the SDK is not installed."""
    if not settings.is_tracing_wanted():
        return None
    try:
        from agent_tools.gateway.telemetry.otlp import provider  # OpenTelemetry's SDK is an extra
    except ImportError:
        return None
    return provider()
