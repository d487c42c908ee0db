"""The plan of a response: its conversation so far, its container, its tool and its limits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any

from agent_tools.agents.turn import Turn
from agent_tools.execution import Picture
from agent_tools.gateway.containers.failures import ContainerExpired, ContainerNotFound, MemoryRefused, NetworkRefused
from agent_tools.gateway.containers.networks import check_network
from agent_tools.gateway.containers.spec import ContainerSpec
from agent_tools.gateway.containers.tool import ContainerTool
from agent_tools.gateway.ids import new_id
from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.responses.composer import ResponseContext
from agent_tools.gateway.responses.history import CallHistory, container_of, messages_of_items
from agent_tools.gateway.responses.input_files import InputFiles, upload_reader
from agent_tools.gateway.responses.request import Request
from agent_tools.gateway.responses.share import ResponseShare
from agent_tools.gateway.responses.stored_items import resolved
from agent_tools.gateway.responses.tools import MODEL_FACING, ContainerChoice
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import Container, ResponseEnd, StoredCall
from agent_tools.models.base import JsonObject

LOST = (
    "The container that earlier calls ran in is gone: its variables and files are lost; a new one is used from now on."
)


@dataclass(frozen=True)
class Plan:
    """All that a response's turn needs. The next response builds on `conversation`, which is without `instructions`."""

    request: Request
    owner: str
    conversation: list[JsonObject]
    instructions: list[JsonObject]
    turn: Turn
    context: ResponseContext
    tool: ContainerTool | None


class Planner:
    """Makes the plan of one request. It asks the store, so it is not for the event loop."""

    def __init__(self, services: Services, owner: str, request: Request) -> None:
        self._services = services
        self._owner = owner
        self._request = request
        self._previous: ResponseEnd | None = None
        self._container_id = ""
        self._notes: list[str] = []

    def plan(self, upstream_key: str) -> Plan:
        """Make the plan.

        Raises:
            ApiError: the request refers to something that does not exist, or cannot be sent on.
            ContainersError: its container cannot be used or made.
        """
        request, config = self._request, self._services.config
        if request.store:
            ResponseShare(config, self._services.store, self._services.shares).check(self._owner)
        items = resolved(self._services.store, self._owner, request.input, config.max_response_bytes)
        self._request = request = replace(request, input=items)
        if request.tools.container and config.tool_name in [function.name for function in request.tools.functions]:
            raise invalid(f"A function cannot be called {config.tool_name!r} beside the code interpreter.", "tools")
        self._previous = self._find_previous()
        tool = self._tool(request.tools.container) if request.tools.container else None
        before = json.loads(self._previous.conversation) if self._previous else []
        conversation = [*before, *messages_of_items(request.input, self._past(tool))]
        told = "\n\n".join(filter(None, [request.instructions, *self._notes]))
        instructions = [{"role": "system", "content": told}] if told else []
        turn = Turn(
            self._services.upstream.model(request.model, upstream_key),
            [tool] if tool else (),
            [function.definition for function in request.tools.functions],
            options=_named_choice(request.options, config.tool_name),
            max_rounds=config.max_rounds,
            max_calls=request.max_tool_calls,
            deadline=config.turn_timeout,
        )
        context = self._context(tool)
        return Plan(request, self._owner, conversation, instructions, turn, context, tool)

    def _find_previous(self) -> ResponseEnd | None:
        id_ = self._request.previous_response_id
        if id_ is None:
            return None
        previous = self._services.store.get(ResponseEnd, id_, owner=self._owner)
        if previous is None or previous.status not in ("completed", "incomplete"):
            message = f"Previous response with id '{id_[:80]}' not found."
            raise invalid(message, "previous_response_id", "previous_response_not_found")
        return previous

    # -- the container ------------------------------------------------------------------------------------------------

    def _tool(self, choice: ContainerChoice) -> ContainerTool:
        containers = self._services.containers
        if choice.id is not None:
            row = containers.active(self._owner, choice.id)
            self._container_id = row.id
            return ContainerTool(containers, self._container_id, network=row.network)
        memory, network = self._given(choice)
        if earlier := self._earlier(network):
            self._container_id = earlier
            self._bring(choice.file_ids)
            return ContainerTool(containers, self._container_id, network=network)
        self._container_id = new_id("cntr")
        make = partial(self._make, ContainerSpec("auto", memory, domains=choice.domains))
        if not choice.file_ids:
            containers.check_room(self._owner)
            return ContainerTool(containers, self._container_id, make, network=network)
        make()
        self._bring(choice.file_ids)
        return ContainerTool(containers, self._container_id, network=network)

    def _given(self, choice: ContainerChoice) -> tuple[str, str]:
        """Return the memory tier and the network that a new container gets."""
        containers = self._services.containers
        try:
            return containers.check_memory(choice.memory), check_network(choice.domains, containers.config)
        except MemoryRefused as exc:
            raise invalid(exc.message, f"{choice.path}.memory_limit") from exc
        except NetworkRefused as exc:
            raise invalid(exc.message, f"{choice.path}.network_policy", "unsupported_value") from exc

    def _make(self, spec: ContainerSpec) -> None:
        if self._services.store.get(Container, self._container_id) is None:
            self._services.containers.create(self._owner, spec, self._container_id)

    def _earlier(self, network: str) -> str | None:
        """Return the conversation's own container, if it is not expired and has this network."""
        named = container_of(self._request.input) or (self._previous.container_id if self._previous else None)
        if not named:
            return None
        with contextlib.suppress(ContainerNotFound, ContainerExpired):
            row = self._services.containers.active(self._owner, named)
            if row.network == network:
                return row.id
        self._notes.append(LOST)
        return None

    def _bring(self, file_ids: tuple[str, ...]) -> None:
        there = {listed.file.path for listed in self._services.files.listed(self._container_id)}
        for id_ in file_ids:
            if self._services.uploads.find(self._owner, id_).filename not in there:
                self._services.files.put_upload(self._owner, self._container_id, id_)

    # -- what the pure parts ask for ----------------------------------------------------------------------------------

    def _past(self, tool: ContainerTool | None) -> CallHistory:
        services = self._services
        ids = [str(item.get("id")) for item in self._request.input if item.get("type") == "code_interpreter_call"]
        told = {call.id: call.told for call in services.store.get_all(StoredCall, ids, owner=self._owner)}
        read = upload_reader(services.uploads, self._owner, services.config.max_body_bytes)
        return CallHistory(services.config.tool_name, told.get, InputFiles(services.files, read, tool).part)

    def _context(self, tool: ContainerTool | None) -> ResponseContext:
        files, id_ = self._services.files, self._container_id

        def find_file(name: str) -> str | None:
            file = files.named(id_, name) if tool and tool.has_container else None
            return file.id if file else None

        def image_url(picture: Picture) -> str:
            found = find_file(PurePath(picture.path).name) if self._services.config.image_urls == "content" else None
            if found:
                return f"/v1/containers/{id_}/files/{found}/content"
            return picture.data_url

        functions = frozenset(function.name for function in self._request.tools.functions)
        name = self._services.config.tool_name if tool else ""
        return ResponseContext(name, functions, id_, self._request.with_outputs, find_file, image_url)


def _named_choice(options: Mapping[str, Any], tool_name: str) -> JsonObject:
    choice = options.get("tool_choice")
    if isinstance(choice, dict) and choice["function"]["name"] == MODEL_FACING:
        return {**options, "tool_choice": {"type": "function", "function": {"name": tool_name}}}
    return dict(options)
