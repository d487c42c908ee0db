"""One routed chat completion as a job: its turn, and one container for all its calls, gone at the end."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress

from agent_tools.agents.turn.loop import Turn
from agent_tools.containers.failures import ContainersError
from agent_tools.containers.ids import new_id
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.chat.composer import ChatComposer, Chunk
from agent_tools.gateway.chat.request import ChatRequest
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.hold import Hold
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.models.base import JsonObject


class ChatJob(TurnJob):
    """A routed chat completion; made in the event loop."""

    def __init__(self, services: Services, request: ChatRequest, owner: str, upstream_key: str) -> None:
        super().__init__(services, owner, request.model, EventLog(services.config.max_response_bytes))
        self._request = request
        self._owner = owner
        self._key = upstream_key
        self._container_id = new_id("cntr")
        self._is_made = False
        self._hold = Hold(services.containers, self._container_id, self._make)
        self._tools = [ContainerTool(self._hold, function) for function in request.ours]
        self._composer = ChatComposer(request.model, request.with_usage)

    @property
    def completion(self) -> JsonObject:
        """The whole completion, once it is over."""
        return self._composer.completion

    def events(self) -> Generator[Chunk, None, None]:
        """Make the completion, chunk by chunk."""
        for number, step in enumerate(self.steps(self._turn(), self._request.messages, self._tools)):
            if not number:
                yield from self._composer.begin()
            yield from self._composer.feed(step)

    def failed(self, failure: ApiError) -> Iterator[Chunk]:
        """Yield the error in place of a chunk."""
        yield failure.body

    def close(self) -> None:
        """Let go of the container and delete it."""
        self._hold.close()
        if self._is_made:
            with suppress(ContainersError):
                self._services.containers.delete(self._owner, self._container_id)
        super().close()

    def _turn(self) -> Turn:
        config, request = self._services.config, self._request
        return Turn(
            self._services.upstream.model(request.model, self._key),
            self._tools,
            request.others,
            options=request.options,
            max_rounds=config.max_rounds,
            deadline=config.turn_timeout,
        )

    def _make(self) -> None:
        if not self._is_made:
            self._services.containers.create(self._owner, ContainerSpec("chat"), self._container_id)
            self._is_made = True
