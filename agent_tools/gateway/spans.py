"""Spans of turns by OpenTelemetry's conventions for generative AI: names, numbers and statuses, and no content.

A turn is `invoke_agent`, below it `chat` for each reply of the model and `execute_tool` for each call. A client's
`traceparent` is the turn's parent; the model's server gets that of `chat`, a remote MCP server that of
`execute_tool`. Published instrumentations write the texts of errors into spans, so none is used.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from agent_tools import tracing
from agent_tools.agents.steps import CallDone, CallRunning, Finished, RoundDone, Step
from agent_tools.gateway.model_ids import MAX_MODEL_ID
from agent_tools.sandbox.audit import ending

with suppress(ImportError):  # an extra: without it there is no tracer either
    from opentelemetry.trace import SpanKind, set_span_in_context

NAME = "agent_tools.gateway"
AGENT = "agent-tools"
PROVIDER = "openai"  # whose API the model's server speaks
MAX_NAME = 128  # characters of a tool's name or a call's id


class TurnSpans:
    """The spans of one turn that begins now, in the trace of the request that is being served.

    Only the thread of the turn's job may use it, since a thread has a trace context of its own. `provider` is a
    TracerProvider; without one there are no spans.
    """

    def __init__(self, provider: Any, model: str, upstream: str) -> None:
        self._tracer: Any = provider.get_tracer(NAME) if provider else None
        self._upstream = urlsplit(upstream)
        self._model = {"gen_ai.provider.name": PROVIDER, "gen_ai.request.model": model[:MAX_MODEL_ID]}
        self._calls: dict[str, Any] = {}
        self._replied_at: int | None = None  # nanoseconds: when the reply of this round ended
        self._chat: Any = None  # while the model is asked
        if self._tracer:
            self._turn = self._tracer.start_span(
                f"invoke_agent {AGENT}",
                attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": AGENT, **self._model},
            )

    def begin(self) -> None:
        """Begin the first round: the model is asked."""
        if self._tracer:
            self._ask()

    def step(self, step: Step) -> None:
        """Start, end or mark spans by a step."""
        if self._tracer is None:
            return
        match step:
            case CallRunning(id_, name):
                self._replied_at = self._replied_at or time.time_ns()
                self._calls[id_] = self._tool(id_[:MAX_NAME], name[:MAX_NAME])
            case CallDone(call=call) if call.id in self._calls:
                _end_call(self._calls.pop(call.id), step)
                tracing.make_current(self._turn)
            case RoundDone():
                self._end_round(step)
                self._ask()  # a span that is not ended is never sent, should this be the last round
            case Finished(reason=reason):
                self._chat = None
                self._turn.set_attribute("agent_tools.turn.reason", reason)

    def end(self, failure: str = "") -> None:
        """End all spans of the turn, those under way with a failure's code if there was one."""
        if self._tracer is None:
            return
        is_asked = self._chat and not self._replied_at
        under_way = [*self._calls.values(), *([self._chat] if is_asked else [])]
        for span in (*under_way, self._turn):
            if failure:
                tracing.mark(span, failure)
            span.end()

    def _ask(self) -> None:
        self._replied_at = None
        attributes = {
            "gen_ai.operation.name": "chat",
            **self._model,
            "gen_ai.request.stream": True,
            "server.address": self._upstream.hostname or "",
            "server.port": self._upstream.port or (443 if self._upstream.scheme == "https" else 80),
        }
        name = f"chat {self._model['gen_ai.request.model']}"
        self._chat = self._tracer.start_span(
            name, set_span_in_context(self._turn), kind=SpanKind.CLIENT, attributes=attributes
        )
        tracing.make_current(self._chat)

    def _end_round(self, step: RoundDone) -> None:
        if step.reason:
            self._chat.set_attribute("gen_ai.response.finish_reasons", [step.reason])
        if step.usage:
            self._chat.set_attribute("gen_ai.usage.input_tokens", step.usage.input_tokens)
            self._chat.set_attribute("gen_ai.usage.output_tokens", step.usage.output_tokens)
        self._chat.end(self._replied_at)

    def _tool(self, id_: str, name: str) -> Any:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id_,
            "gen_ai.tool.type": "extension",
        }
        span = self._tracer.start_span(f"execute_tool {name}", set_span_in_context(self._turn), attributes=attributes)
        tracing.make_current(span)
        return span


def _end_call(span: Any, step: CallDone) -> None:
    """End the span of a call; an error is named by its kind, never by the words of code."""
    if step.failure:
        tracing.mark(span, type(step.failure).__name__)
    elif step.execution and not step.execution.ok:
        tracing.mark(span, ending(step.execution.error)["outcome"])
    span.end()
