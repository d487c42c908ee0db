"""The container of a chat completion: the one its client names, or its conversation's, or a new one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from agent_tools.containers.failures import (
    ContainerExpired,
    ContainerNotFound,
    ContainersError,
    TooManyContainers,
)
from agent_tools.containers.ids import new_id
from agent_tools.containers.spec import ContainerSpec, check_memory
from agent_tools.gateway.chat.request import ChatRequest
from agent_tools.gateway.conversations.marks import Sender
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.store import StoreError
from agent_tools.gateway.tools.hold import Hold

ORIGIN = "chat"  # of those that are made here, and their name
LOST = "[The container that earlier calls ran in is gone: its variables and files are lost; this is a new one.]\n\n"


class ChatContainer:
    """Found in the store, so it is not made in the event loop. `hold` is what the tools hold.

    Raises:
        ContainersError: the container that the client names is not there, or its memory is more than allowed.
        StoreError: the store cannot be read.
    """

    def __init__(self, services: Services, request: ChatRequest, owner: str, session: str) -> None:
        self._services = services
        self._owner = owner
        self._memory = request.memory
        sender = Sender(owner, request.user, session, request.cache_key)
        self._conversation = services.conversations.of(sender, request.messages)
        self._has_session = bool(session)
        self._is_found_again = False
        self._is_made = False
        self.hold = self._held(request.container_id)

    def note(self, message: Mapping[str, Any]) -> None:
        """Note the answer, so that the conversation's next request finds the container."""
        messages: Iterable[Mapping[str, Any]] = [message]
        container_id = self.hold.container_id if self.hold.has_container else ""
        self._services.conversations.note(self._conversation, messages, container_id)
        self._is_found_again |= self._has_session or self._services.config.match_text or bool(message.get("tool_calls"))

    def close(self) -> None:
        """Let go of the container; one that no request could find again is deleted."""
        self.hold.close()
        if self._is_made and not self._is_found_again:
            with suppress(ContainersError, StoreError):  # else it expires
                self._services.containers.delete(self._owner, self.hold.container_id)

    def _held(self, named: str) -> Hold:
        containers = self._services.containers
        if named:
            row = containers.active(self._owner, named)
            return Hold(containers, row.id, network=row.network)
        known = self._services.conversations.find(self._conversation)
        if known.container_id:
            with suppress(ContainerNotFound, ContainerExpired):
                row = containers.active(self._owner, known.container_id)
                return Hold(containers, row.id, network=row.network)
        check_memory(self._memory, containers.config)
        hold = Hold(containers, new_id("cntr"), self._make)
        hold.note = LOST if known.container_id or known.was_lost else ""
        return hold

    def _make(self) -> None:
        """Make the container; where the owner has as many as allowed, the one unused for longest goes."""
        containers, spec = self._services.containers, ContainerSpec(ORIGIN, self._memory, origin=ORIGIN)
        try:
            containers.create(self._owner, spec, self.hold.container_id)
        except TooManyContainers:
            if not containers.end_unused(self._owner, ORIGIN):
                raise
            containers.create(self._owner, spec, self.hold.container_id)
        self._is_made = True
