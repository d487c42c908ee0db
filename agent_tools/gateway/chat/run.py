"""One routed chat completion: its turn in a thread, one container for all its calls, gone at the end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import CallBegun, CallDone, Finished, Step
from agent_tools.agents.turn import Turn
from agent_tools.errors import ModelError
from agent_tools.gateway.chat.composer import ChatComposer, Chunk
from agent_tools.gateway.chat.request import ChatRequest
from agent_tools.gateway.containers.containers import Wanted
from agent_tools.gateway.containers.tool import ContainerTool
from agent_tools.gateway.ids import new_id
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.requests.failures import ApiError, from_model, from_tool, stopped
from agent_tools.gateway.services import Services

_log = logging.getLogger(__name__)


class ChatRun:
    """Made in the event loop; `work` is for a thread."""

    def __init__(self, services: Services, request: ChatRequest, owner: str, upstream_key: str) -> None:
        self.cancel = Cancel()
        self.is_stopped = False
        self.failure: ApiError | None = None
        self.log = EventLog(services.config.max_response_bytes)
        self.on_end: Callable[[], None] = lambda: None
        self._services = services
        self._request = request
        self._owner = owner
        self._key = upstream_key
        self._container_id = new_id("cntr")
        self._is_made = False
        self._spans = services.tracer.turn(request.model)
        self._composer = ChatComposer(request.model, request.with_usage)

    @property
    def completion(self) -> dict[str, Any]:
        """The whole completion."""
        return self._composer.completion

    def work(self) -> None:
        """Make the completion, to its end, whatever happens."""
        tools = [
            ContainerTool(self._services.containers, self._container_id, self._make, f) for f in self._request.ours
        ]
        try:
            for chunk in self._chunks(tools):
                self.log.append(chunk)
        finally:
            for tool in tools:
                tool.close()
            self._remove()
            self._spans.end()
            self.on_end()
            self.log.close()

    def _chunks(self, tools: list[ContainerTool]) -> Iterator[Chunk]:
        try:
            model = self._services.upstream.model(self._request.model, self._key)
            config, request = self._services.config, self._request
            turn = Turn(
                model,
                tools,
                request.others,
                options=request.options,
                max_rounds=config.max_rounds,
                deadline=config.turn_timeout,
            )
            with closing(turn.run(request.messages, self.cancel)) as steps:
                for number, step in enumerate(steps):
                    if isinstance(step, Finished) and step.reason == "cancelled" and self.is_stopped:
                        raise stopped()
                    if not number:
                        yield from self._composer.begin()
                    self._services.metrics.step(step)
                    self._spans.step(step)
                    _warm_up(tools, step)
                    yield from self._composer.feed(step)
                    if isinstance(step, CallDone) and (failure := from_tool(step.failure)):
                        raise failure
                    if self.log.is_full:
                        raise ApiError(500, "The answer became larger than it may.", code="response_too_large")
        except ModelError as exc:
            yield self._failed(from_model(exc, is_clients_key=self._services.upstream.passes_key()))
        except ApiError as exc:
            yield self._failed(exc)
        except Exception as exc:  # noqa: BLE001  (the outermost loop of a door)
            _log.error("a chat completion failed: %s", type(exc).__name__)
            yield self._failed(ApiError(500, "The gateway failed.", code="internal_error"))

    def _failed(self, failure: ApiError) -> Chunk:
        self.failure = failure
        return failure.body

    def _make(self) -> None:
        if not self._is_made:
            self._services.containers.create(self._owner, Wanted("chat"), self._container_id)
            self._is_made = True

    def _remove(self) -> None:
        if self._is_made:
            with contextlib.suppress(ApiError):
                self._services.containers.delete(self._owner, self._container_id)


def _warm_up(tools: list[ContainerTool], step: Step) -> None:
    for tool in tools:
        if isinstance(step, CallBegun) and step.name == tool.name:
            tool.warm_up()
