"""One routed chat completion as a job: its turn, with one container for all its calls."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from agent_tools.agents.steps import Finished
from agent_tools.agents.turn.loop import Turn
from agent_tools.gateway.chat.composer import ChatComposer, Chunk
from agent_tools.gateway.chat.container import ChatContainer
from agent_tools.gateway.chat.request import ChatRequest
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.requests.failures import ApiError, revoked
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.models.base import JsonObject


class ChatJob(TurnJob):
    """A routed chat completion; made in the event loop."""

    def __init__(
        self, services: Services, request: ChatRequest, owner: str, upstream_key: str, session: str = ""
    ) -> None:
        super().__init__(services, owner, request.model, EventLog(services.config.max_response_bytes))
        self._request = request
        self._owner = owner
        self._key = upstream_key
        self._session = session
        self._container: ChatContainer | None = None
        self._composer = ChatComposer(request.model, request.with_usage, bool(request.options.get("logprobs")))

    @property
    def completion(self) -> JsonObject:
        """The whole completion, once it is over."""
        return self._composer.completion

    def events(self) -> Generator[Chunk, None, None]:
        """Make the completion, chunk by chunk."""
        container = self._container = ChatContainer(self._services, self._request, self._owner, self._session)
        tools = [ContainerTool(container.hold, function) for function in self._request.ours]
        for number, step in enumerate(self.steps(self._turn(tools), self._request.messages, tools)):
            if isinstance(step, Finished) and step.reason == "cancelled" and not self._services.keys.has(self._owner):
                raise revoked()  # else nobody is there to take a part of the answer for all of it
            if not number:
                yield from self._composer.begin()
            chunks = list(self._composer.feed(step))
            if self.completion:
                container.note(self.completion["choices"][0]["message"])  # before the client hears of the end
            yield from chunks

    def failed(self, failure: ApiError) -> Iterator[Chunk]:
        """Yield the error in place of a chunk."""
        yield failure.body

    def close(self) -> None:
        """Let go of the container."""
        if self._container:
            self._container.close()
        super().close()

    def _turn(self, tools: list[ContainerTool]) -> Turn:
        config, request = self._services.config, self._request
        return Turn(
            self._services.upstream.model(request.model, self._key),
            tools,
            request.others,
            options=request.options,
            max_rounds=config.max_rounds,
            deadline=config.turn_timeout,
            format_beside_tools=self._services.upstream.takes_format_beside_tools,
            show_pictures=config.pictures_shown(request.model),
        )
