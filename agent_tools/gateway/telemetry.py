"""Metrics for Prometheus: numbers and fixed names only, no content."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from agent_tools.agents.steps import CallCommand, CallDone, Finished, RoundDone, Step
from agent_tools.gateway.requests.api_errors import SecurityEvent
from agent_tools.models.base import Usage
from agent_tools.results.execution import Died, Execution, TimedOut
from agent_tools.runtime.pool.pool import Miss
from agent_tools.runtime.pool.pools import PoolState
from agent_tools.sandbox.audit import RunEnd
from agent_tools.tools.command_tool import CommandEnd

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
