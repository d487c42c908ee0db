"""A job that runs a turn between a model and its tools, with metrics, traces and a size limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Union

from agent_tools.agents.steps import CallBegun, CallDone, CallRunning, Finished, RoundDone, Step
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.gateway.client_errors import engine_error
from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.jobs import Job
from agent_tools.gateway.requests.api_errors import ApiError, stopped
from agent_tools.gateway.services import Services
from agent_tools.gateway.spans import TurnSpans
from agent_tools.gateway.tools.patch import ContainerPatch
from agent_tools.gateway.tools.shell import ContainerShell
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.gateway.upstream import NO_KEY
from agent_tools.models.base import Conversation, FunctionDefinition, Options

HostedTool = Union[ContainerTool, ContainerShell, ContainerPatch]


class TurnJob(Job):
    """The common part of responses and chat completions. One without a sandbox is urgent: it computes before others."""

    def __init__(
        self, services: Services, owner: str, model: str, upstream_key: str, log: EventLog, *, is_urgent: bool = False
    ) -> None:
        super().__init__(log, is_clients_key=services.config.passes_clients_keys and upstream_key != NO_KEY)
        self._is_urgent = is_urgent
        self._has_ended = False
        self._services = services
        self._upstream = (model, upstream_key)
        self._owner = owner
        self._spans = TurnSpans(services.tracing, model, services.config.upstream)

    def turn(
        self, tools: Sequence[HostedTool], functions: Sequence[FunctionDefinition], options: Options, **more: Any
    ) -> ToolLoop:
        """Return a turn with tools, and functions of the client, within the gateway's limits."""
        return limited_turn(self._services, self._upstream, tools, functions, options, **more)

    def work(self) -> None:
        """Do the work, one at a time with others while it computes."""
        self._spans.begin()
        with self._services.compute.computing(is_urgent=self._is_urgent):
            super().work()

    def steps(self, turn: ToolLoop, messages: Conversation, tools: Sequence[HostedTool]) -> Iterator[Step]:
        """Run a turn and yield its steps; a sandbox starts as soon as the model begins to write a call.

        Raises:
            ApiError: the gateway stops, no engine works, or the log is full.
        """
        compute = self._services.compute
        with (
            self.cancel.ending(partial(_stop_waiting, tools)),
            closing(turn.run(messages, self.cancel)) as steps,
            ExitStack() as running,
        ):
            for step in steps:
                if isinstance(step, CallDone):
                    running.close()
                if isinstance(step, Finished) and step.reason == "cancelled" and self.is_stopped:
                    raise stopped()
                self._has_ended = isinstance(step, Finished)
                self._count(step)
                self._spans.step(step)
                if isinstance(step, CallBegun):
                    with compute.waiting():
                        _warm_up(tools, step.name)
                yield step
                if isinstance(step, CallRunning):
                    running.enter_context(compute.waiting())
                if isinstance(step, CallDone) and (failure := engine_error(step.failure)):
                    raise failure
                if self.log.is_full and not isinstance(step, Finished):
                    raise ApiError(500, "The response became larger than allowed.", code="response_too_large")

    def _count(self, step: Step) -> None:
        """Count a step, and the tokens of an answer."""
        self._services.metrics.step(step, self._services.keys.name_of(self._owner))
        if isinstance(step, RoundDone) and step.usage:
            self._services.usage.asked(self._owner, step.usage)

    def close(self) -> None:
        """End the spans, and count a turn that an error has ended."""
        if self.failure and not self._has_ended:
            self._services.metrics.turn_failed()
        self._spans.end((self.failure.code or self.failure.kind) if self.failure else "")


def limited_turn(
    services: Services,
    upstream: tuple[str, str],
    tools: Sequence[HostedTool],
    functions: Sequence[FunctionDefinition],
    options: Options,
    **more: Any,
) -> ToolLoop:
    """Return a turn within the gateway's limits. `upstream` is the model's name and the key for its server."""
    config = services.config
    return ToolLoop(
        services.upstream.model(*upstream),
        tools,
        functions,
        options=options,
        max_rounds=config.max_rounds,
        deadline=config.turn_timeout,
        format_beside_tools=services.upstream.takes_format_beside_tools,
        **more,
    )


def _stop_waiting(tools: Sequence[HostedTool]) -> None:
    for tool in tools:
        tool.lease.stop_waiting()


def _warm_up(tools: Sequence[HostedTool], name: str) -> None:
    for tool in tools:
        if name == tool.name:
            tool.lease.warm_up()
