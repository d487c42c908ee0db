"""A routed chat completion as a job: one turn, with one container for all its calls."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from agent_tools.agents.steps import Finished
from agent_tools.containers.failures import (
    ContainerExpired,
    ContainerNotFound,
    ContainersError,
    TooManyContainers,
)
from agent_tools.containers.ids import new_id
from agent_tools.containers.spec import ContainerSpec, check_memory
from agent_tools.gateway.chat_composer import ChatComposer, Chunk
from agent_tools.gateway.chat_request import ChatRequest
from agent_tools.gateway.conversations.fingerprint import ConversationIdentity
from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.requests.api_errors import ApiError, revoked
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.models.base import JsonObject


class ChatJob(TurnJob):
    """A routed chat completion; made in the event loop."""

    def __init__(
        self, services: Services, request: ChatRequest, owner: str, upstream_key: str, session: str = ""
    ) -> None:
        super().__init__(services, owner, request.model, upstream_key, EventLog(services.config.max_response_bytes))
        self._request = request
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
        tools = [ContainerTool(container.lease, function) for function in self._request.ours]
        pictures = self._services.config.pictures_shown(self._request.model)
        turn = self.turn(tools, self._request.others, self._request.options, show_pictures=pictures)
        for number, step in enumerate(self.steps(turn, self._request.messages, tools)):
            if isinstance(step, Finished) and step.reason == "cancelled" and not self._services.keys.has(self._owner):
                raise revoked()  # any other cancel: the client has disconnected
            if not number:
                yield from self._composer.begin()
            chunks = list(self._composer.feed(step))
            if self.completion:
                container.record(self.completion["choices"][0]["message"])  # before the client hears of the end
            yield from chunks

    def failed(self, failure: ApiError) -> Iterator[Chunk]:
        """Yield the error in place of a chunk."""
        yield failure.body

    def close(self) -> None:
        """Release the container."""
        if self._container:
            self._container.close()
        super().close()


ORIGIN = "chat"  # the origin and the name of containers that are made here
LOST = "[The container that earlier calls ran in is gone: its variables and files are lost; this is a new one.]\n\n"


class ChatContainer:
    """The container of a chat completion. Made in a thread, since it reads the store; the tools share `lease`.

    Raises:
        ContainersError: the client's container does not exist, or its memory is more than allowed.
        RowsAway: the store cannot be read.
    """

    def __init__(self, services: Services, request: ChatRequest, owner: str, session: str) -> None:
        self._services = services
        self._owner = owner
        self._memory = request.memory
        identity = ConversationIdentity(owner, request.user, session, request.cache_key)
        self._conversation = services.conversations.of(identity, request.messages)
        self._has_session = bool(session)
        self._is_found_again = False
        self.lease = self._leased(request.container_id)

    def record(self, message: Mapping[str, Any]) -> None:
        """Store the answer's fingerprints, so that the conversation's next request finds the container."""
        messages: Iterable[Mapping[str, Any]] = [message]
        container_id = self.lease.container_id if self.lease.has_container else ""
        self._services.conversations.record(self._conversation, messages, container_id)
        self._is_found_again |= self._has_session or self._services.config.match_text or bool(message.get("tool_calls"))

    def close(self) -> None:
        """Release the container; delete it if no later request could find it."""
        self.lease.close()
        if self.lease.has_made and not self._is_found_again:
            with suppress(ContainersError):  # else it expires
                self._services.containers.delete(self._owner, self.lease.container_id)

    def _leased(self, named: str) -> ContainerLease:
        containers = self._services.containers
        if named:
            row = containers.active(self._owner, named)
            own_skills = self._services.skills.of_container(row.skills)
            return ContainerLease(containers, row.id, network=row.network, own_skills=own_skills)
        known = self._services.conversations.find(self._conversation)
        if known.container_id:
            with suppress(ContainerNotFound, ContainerExpired):
                row = containers.active(self._owner, known.container_id)
                return ContainerLease(containers, row.id, network=row.network)
        check_memory(self._memory, containers.config)
        lease = ContainerLease(containers, new_id("cntr"), self._make)
        lease.note = LOST if known.container_id or known.was_lost else ""
        return lease

    def _make(self) -> None:
        """Create the container; at the owner's limit, delete the one unused for longest."""
        containers, spec = self._services.containers, ContainerSpec(ORIGIN, self._memory, origin=ORIGIN)
        try:
            containers.create(self._owner, spec, self.lease.container_id)
        except TooManyContainers:
            if not containers.end_unused(self._owner, ORIGIN):
                raise
            containers.create(self._owner, spec, self.lease.container_id)
