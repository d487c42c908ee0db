"""Metrics for Prometheus: numbers and fixed names only, no content."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, get_args
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from agent_tools import tracing
from agent_tools.agents.steps import CallCommand, CallDone, CallRunning, Finished, RoundDone, Step
from agent_tools.gateway.requests.failures import SecurityEvent
from agent_tools.gateway.upstream import MAX_MODEL_ID
from agent_tools.models.base import Usage
from agent_tools.results.execution import Died, Execution, TimedOut
from agent_tools.runtime.pool import Miss, PoolState
from agent_tools.sandbox.audit import RunEnd, ending
from agent_tools.tools.command_tool import CommandEnd

# Spans of turns by OpenTelemetry's conventions for generative AI: names, numbers and statuses, nothing anyone said.
#
# A turn is `invoke_agent`, below it `chat` for each reply of the model and `execute_tool` for each call. A client's
# `traceparent` is the turn's parent; the model's server gets that of `chat`, a remote MCP server that of
# `execute_tool`.

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


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_GROWING = {
    "agent_tools_sweep_failures": "Objects that a sweep could not remove; the next one retries.",
    "agent_tools_store_failures": "Transactions that failed because the database was unreachable, locked or full.",
    "agent_tools_parked": "Containers whose sandbox made room for another's, or for the machine's memory.",
}
READINESS_SECONDS = 10.0  # between two questions that scrapes lead to
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"))
_STATUSES = frozenset((*HTTPStatus, 499))


class Metrics:
    """One registry for each gateway.

    `running` returns the containers with a sandbox, each with True while it is in use; `growing` has, by name, numbers
    that others count; `pools` the sandboxes made ahead.
    """

    def __init__(
        self,
        running: Callable[[], Mapping[str, bool]],
        growing: Mapping[str, Callable[[], int]] = MappingProxyType({}),
        pools: Callable[[], PoolState] = PoolState,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Read(lambda: _of_sandboxes(running())))
        self.registry.register(_Read(lambda: _of_pools(pools())))
        self.registry.register(ProcessCollector(registry=None))
        self.registry.register(
            _Read(
                lambda: [
                    CounterMetricFamily(name, says, value=growing.get(name, int)()) for name, says in _GROWING.items()
                ]
            )
        )
        self._make_for_requests()
        self._make_for_parts()
        self._make_for_turns()

    def _make_for_requests(self) -> None:
        registry = self.registry
        self.requests = Counter(
            "agent_tools_requests", "HTTP requests.", ["method", "route", "status"], registry=registry
        )
        self.in_flight = Gauge("agent_tools_requests_in_flight", "HTTP requests under way.", registry=registry)
        self.sockets = Gauge("agent_tools_websockets", "WebSocket connections that are open.", registry=registry)
        self.request_seconds = Histogram(
            "agent_tools_request_seconds", "HTTP requests.", ["route"], buckets=_SECONDS, registry=registry
        )
        says = "Requests of each key, by their result."
        self._of_keys = Counter("agent_tools_key_requests", says, ["key", "end"], registry=registry)
        says = "Runs of code and commands that have ended, of each key."
        self._runs = Counter("agent_tools_key_runs", says, ["key"], registry=registry)
        says = "Time that they took."
        self._run_seconds = Counter("agent_tools_key_run_seconds", says, ["key"], registry=registry)
        says = "Bytes through the egress allowlist, in runs of code of each key."
        self._bytes = Counter("agent_tools_key_network_bytes", says, ["key", "direction"], registry=registry)
        says = "Refused requests, and code that exceeded its limits."
        self._security = Counter("agent_tools_security_events", says, ["event"], registry=registry)
        for event in get_args(SecurityEvent):
            self._security.labels(event)  # at 0, so that an alarm can be set before the first

    def _make_for_parts(self) -> None:
        registry, says = self.registry, f"1 if a part answered, at most {READINESS_SECONDS:g} seconds ago."
        self._ready = Gauge("agent_tools_ready", says, ["part"], registry=registry)
        self._asked_at = -float("inf")
        says = "Bytes left on the disk of data_dir."
        self._free = Gauge("agent_tools_disk_free_bytes", says, registry=registry)
        says = "The setting min_disk_free: with fewer bytes left, code and uploads are refused."
        self._least_free = Gauge("agent_tools_disk_min_free_bytes", says, registry=registry)

    def readiness(self, checks: Mapping[str, bool]) -> None:
        """Note which parts answer."""
        self._asked_at = time.monotonic()
        for part, answers in checks.items():
            self._ready.labels(part).set(answers)

    def is_readiness_old(self) -> bool:
        """Return True if it is time to ask the parts again."""
        return time.monotonic() - self._asked_at > READINESS_SECONDS

    def disk(self, free: int, least: int) -> None:
        """Note the bytes left on the disk of `data_dir`, and the setting `min_disk_free`."""
        self._free.set(free)
        self._least_free.set(least)

    def _make_for_turns(self) -> None:
        registry = self.registry
        self.responses = Counter(
            "agent_tools_turns", "Turns between model and tools, by how they ended.", ["end"], registry=registry
        )
        self.rounds = Counter("agent_tools_rounds", "Answers of a model.", registry=registry)
        self.calls = Counter(
            "agent_tools_tool_calls", "Calls of the code interpreter and the shell.", ["status"], registry=registry
        )
        self.commands = Counter(
            "agent_tools_shell_commands", "Shell commands, by how they ended.", ["end"], registry=registry
        )
        self.code_seconds = Histogram("agent_tools_code_seconds", "Running code.", buckets=_SECONDS, registry=registry)
        self.tokens = Counter("agent_tools_tokens", "Tokens, as counted upstream.", ["key", "kind"], registry=registry)
        self.queue = Gauge("agent_tools_queue", "Requests that wait for a sandbox.", registry=registry)
        self.queue_seconds = Histogram(
            "agent_tools_queue_seconds", "Waiting for a sandbox.", buckets=_SECONDS, registry=registry
        )

    def request_of(self, key: str, status: int) -> None:
        """Count a request of a key, by its name."""
        self._of_keys.labels(key, "limited" if status == 429 else f"{status // 100}xx").inc()

    def ran(self, key: str, run: RunEnd) -> None:
        """Count a run of a key, by its name."""
        self._runs.labels(key).inc()
        self._run_seconds.labels(key).inc(run.milliseconds / 1_000)
        self._bytes.labels(key, "in").inc(run.bytes_in)
        self._bytes.labels(key, "out").inc(run.bytes_out)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. Its sender chooses no label's value, so the number of series is bounded."""
        known = method if method in _METHODS else "other"
        self.requests.labels(known, route, str(status) if status in _STATUSES else "other").inc()
        self.request_seconds.labels(route).observe(seconds)

    def security(self, event: SecurityEvent) -> None:
        """Count an event that an operator may want to know of."""
        self._security.labels(event).inc()

    def ended(self, execution: Execution) -> None:
        """Count code that exceeded its limits."""
        for output in execution.outputs:
            if isinstance(output, Died) and output.cause:
                self.security(output.cause)

    def step(self, step: Step, key: str) -> None:
        """Count a step of a turn that was asked for with a key of this name."""
        match step:
            case CallDone(execution=execution):
                self.calls.labels(_status(step)).inc()
                if execution is not None:
                    self.code_seconds.observe(execution.duration)
                    self.ended(execution)
            case CallCommand(news=CommandEnd() as end):
                self.commands.labels(_end(end)).inc()
            case RoundDone(usage=usage):
                self.rounds.inc()
                self._count_tokens(usage or Usage(), key)
            case Finished(reason=reason):
                known = ("stop", "length", "tool_calls", "pending", "rounds", "cancelled", "deadline")
                self.responses.labels(reason if reason in known else "other").inc()

    def turn_failed(self) -> None:
        """Count a turn that an error has ended."""
        self.responses.labels("failed").inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _count_tokens(self, usage: Usage, key: str) -> None:
        self.tokens.labels(key, "input").inc(usage.input_tokens)
        self.tokens.labels(key, "output").inc(usage.output_tokens)


class _Read(Collector):
    """Reads values when metrics are collected."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._read()


def _of_pools(state: PoolState) -> list[Metric]:
    """Return the sandboxes that are ready, how sessions that asked for one fared, and cold starts."""
    says = "Sessions with a sandbox made ahead (hit), or why they had none."
    takes = CounterMetricFamily("agent_tools_pool_takes", says, labels=["outcome"])
    for outcome in ("hit", *get_args(Miss)):
        takes.add_metric([outcome], state.takes.get(outcome, 0))
    ready = GaugeMetricFamily("agent_tools_pool_ready", "Sandboxes made ahead that are ready.", value=state.ready)
    says = "Sandboxes that were started while a request waited."
    cold = CounterMetricFamily("agent_tools_cold_starts", says, value=state.cold_starts)
    says = "Time that these took to start."
    seconds = CounterMetricFamily("agent_tools_cold_start_seconds", says, value=state.cold_start_seconds)
    return [takes, ready, cold, seconds]


def _of_sandboxes(running: Mapping[str, bool]) -> list[Metric]:
    """Return the number of sandboxes in use and idle."""
    gauge = GaugeMetricFamily("agent_tools_sandboxes", "Sandboxes now.", labels=["state"])
    gauge.add_metric(["busy"], sum(running.values()))
    gauge.add_metric(["idle"], len(running) - sum(running.values()))
    return [gauge]


def _status(done: CallDone) -> str:
    if done.execution is None:
        return "refused" if done.failure else "completed"
    error = done.execution.error
    return {TimedOut: "timeout", Died: "died"}.get(type(error), "raised" if error else "completed")


def _end(end: CommandEnd) -> str:
    if end.timed_out:
        return "timeout"
    return "cancelled" if end.was_cancelled else "failed" if end.exit_code else "completed"
