"""The plan of a response: its conversation so far, its container, its tool and its limits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.containers.failures import ContainerExpired, ContainerNotFound, DiskFull, MemoryRefused, NetworkRefused
from agent_tools.containers.records import ContainerRecord, Upload, new_id
from agent_tools.containers.spec import ContainerSpec, check_memory, check_network
from agent_tools.gateway.background import ACTIVE
from agent_tools.gateway.conversations.known import Known
from agent_tools.gateway.conversations.marks import Conversation, Sender
from agent_tools.gateway.conversations.stored import Hidden, check_item_ids
from agent_tools.gateway.files import SHOWN_DIR
from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.responses.body import listed_items
from agent_tools.gateway.responses.composer import ResponseContext, context_of
from agent_tools.gateway.responses.history import (
    CallHistory,
    check_outputs,
    container_of,
    local_shell,
    messages_of_items,
)
from agent_tools.gateway.responses.input_files import InputFiles, upload_finder
from agent_tools.gateway.responses.mcp.items import Decision
from agent_tools.gateway.responses.request import Request
from agent_tools.gateway.responses.share import ResponseShare
from agent_tools.gateway.responses.stored_items import call_key, decided, files_before, hidden_of, resolved
from agent_tools.gateway.responses.tools import CODE, PATCH, SHELL, ContainerChoice, named_choice
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import ResponseEnd, StoredConversation
from agent_tools.gateway.tools.hold import Hold
from agent_tools.gateway.tools.patch import PATCH_NAME, ContainerPatch, patch_function
from agent_tools.gateway.tools.shell import ContainerShell
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.gateway.turn_job import HostedTool
from agent_tools.models.base import FunctionDefinition, Json, JsonObject

LOST = (
    "The container that earlier calls ran in is gone: its variables and files are lost; a new one is used from now on."
)
FILES_BACK = "Files that the user gave are there again, as they were given."


@dataclass(frozen=True)
class Plan:
    """All that a response's turn needs. The next response builds on `conversation`, which is without `instructions`.

    `known` is the conversation as the client sent it, if a tool here has a container; `stored` is the one of
    `/v1/conversations` that it names; `earlier` is the container of the response before;
    `decisions` are those on calls of MCP servers.
    """

    request: Request
    owner: str
    known: Conversation | None
    stored: StoredConversation | None
    earlier: str | None
    conversation: list[JsonObject]
    instructions: list[JsonObject]
    turn: ToolLoop
    context: ResponseContext
    hold: Hold | None
    tools: tuple[HostedTool, ...]
    decisions: Sequence[Decision] = ()


class Planner:
    """Makes the plan of one request. It asks the store, so it is not for the event loop.

    `look` is called with the container that the conversation has, and raises if the request is for another gateway.

    Attributes:
        services: the gateway's.
    """

    def __init__(
        self,
        services: Services,
        owner: str,
        request: Request,
        session: str = "",
        look: Callable[[ContainerRecord], None] | None = None,
    ) -> None:
        self._look = look or (lambda _: None)
        self.services = services
        self._owner = owner
        self._request = request
        self._session = session
        self._known: Conversation | None = None
        self._previous: ResponseEnd | None = None
        self._stored: StoredConversation | None = None
        self._decisions: list[Decision] = []
        self._container_id = ""
        self._has_made = False
        self._notes: list[str] = []
        self._brought: dict[Upload, str] = {}
        self._files_before: list[list[JsonObject]] = []  # of a container that is lost, the latest first

    @property
    def needs_sandbox(self) -> bool:
        """The request has a tool that runs in a container."""
        return self._request.tools.container is not None

    def plan(self, upstream_key: str) -> Plan:
        """Make the plan.

        Raises:
            ApiError: the request refers to something that does not exist, or cannot be sent on.
            ContainersError: its container cannot be used or made.
            Elsewhere: another gateway has its container.
        """
        config = self.services.config
        self._check_storage()
        request = self._request
        self._check_names()
        self._find_conversation()
        if self._stored:
            self.services.stored_conversations.touch(self._stored.id)
        hold = self._hold(request.tools.container) if request.tools.container else None
        tools = self._hosted(hold) if hold else ()
        before = self._before(hold)
        conversation = [*before, *messages_of_items(self._request.input, self._past(hold))]
        check_outputs(self._request.input, before)
        told = "\n\n".join(filter(None, [request.instructions, *self._notes]))
        instructions = [{"role": "system", "content": told}] if told else []
        turn = ToolLoop(
            self.services.upstream.model(request.model, upstream_key),
            tools,
            self._clients(),
            options=named_choice(request.options, self._names),
            max_rounds=config.max_rounds,
            max_calls=request.max_tool_calls,
            deadline=config.turn_timeout,
            format_beside_tools=self.services.upstream.takes_format_beside_tools,
            show_pictures=config.pictures_shown(request.model),
        )
        context = context_of(self.services, self._request, self._names, self._container_id, hold)
        if request.with_encrypted:
            context = replace(context, seal=partial(self.services.seal.sealed, self._owner))
        head = (self._request, self._owner, self._known, self._stored, self._earlier_id)
        return Plan(*head, conversation, instructions, turn, context, hold, tools, self._decisions)

    def _check_storage(self) -> None:
        """Check that the response can be stored; text that a client waits for is answered without, on a full disk.

        Raises:
            ApiError, DiskFull: as for `ResponseShare.check`.
        """
        request = self._request
        if not request.store:
            return
        try:
            ResponseShare(self.services.config, self.services.store, self.services.shares).check(self._owner)
        except DiskFull:
            if request.background or self.needs_sandbox:
                raise
            self._request = replace(request, store=False)

    def look(self) -> None:
        """Look for the container of the conversation, of which nothing is changed or made. The planner is used up.

        Raises:
            ApiError, ContainersError, Elsewhere: as for `plan`.
        """
        if choice := self._request.tools.container:
            self._find_conversation()
            self._find_container(choice)

    def undo(self) -> None:
        """Discard the container that was made for a response that is not."""
        if self._has_made:
            self.services.containers.discard(self._owner, self._container_id)

    def _find_conversation(self) -> None:
        """Find all that was said before, and whom it is known by."""
        services = self.services
        items = resolved(services.store, self._owner, self._request.input, services.config.max_response_bytes)
        self._request = replace(self._request, input=items)
        self._previous = self._find_previous()
        self._stored = self._find_stored()
        if self._request.tools.container:
            self._known = self._recognised()

    def _before(self, hold: Hold | None) -> list[JsonObject]:
        """Return the messages of what was said before the input."""
        store, given = self.services.store, self._request.input
        if self._stored is None:
            self._decisions = decided(store, self._owner, given, ())
            return json.loads(self._previous.conversation) if self._previous else []
        items, hidden = self.services.stored_conversations.read(self._stored.id)
        self._decisions = decided(store, self._owner, given, items)
        past = replace(self._past(hold), **self._hidden(hidden))
        return messages_of_items(items, past, "conversation.items")

    def _find_stored(self) -> StoredConversation | None:
        """Return the conversation that the request names; its own items get the ids that they will have there."""
        if self._request.conversation is None:
            return None
        conversations = self.services.stored_conversations
        found = conversations.find(self._owner, self._request.conversation)
        conversations.check_room(self._owner, found.id, self._request.input)
        check_item_ids(self._request.input, "input")
        self._request = replace(self._request, input=list(listed_items(self._request.input)))
        return found

    @property
    def _earlier_id(self) -> str | None:
        """The container that the conversation had before, as it is stored."""
        found = self._previous or self._stored
        return found.container_id if found else None

    def _find_previous(self) -> ResponseEnd | None:
        id_ = self._request.previous_response_id
        if id_ is None:
            return None
        previous = self._request.recent or self.services.store.get(ResponseEnd, id_, owner=self._owner)
        if previous is None:
            message = f"Previous response with id '{id_[:80]}' not found."
            raise invalid(message, "previous_response_id", "previous_response_not_found")
        if previous.status in ACTIVE:
            message = f"Previous response with id '{id_[:80]}' has not ended: wait for its end, or cancel it."
            raise invalid(message, "previous_response_id", "previous_response_not_ended")
        return previous  # one that failed is continued from the rounds that were done

    # -- the tools ----------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> dict[str, str]:
        """The names, for the model, of the built-in tools that may be called."""
        config = self.services.config
        names = {CODE: config.tool_name, SHELL: config.shell_name, PATCH: PATCH_NAME}
        return {kind: name for kind, name in names.items() if kind in self._request.tools.built_in}

    def _check_names(self) -> None:
        taken = [tool.name for tool in self._request.tools.clients]
        for kind, name in self._names.items():
            if name in taken:
                raise invalid(f"A tool cannot be called {name!r} beside the {kind.replace('_', ' ')}.", "tools")

    def _hosted(self, hold: Hold) -> tuple[HostedTool, ...]:
        asked = self._request.tools
        code = [ContainerTool(hold)] if CODE in asked.built_in else []
        shell = [ContainerShell(hold)] if SHELL in asked.built_in and not asked.has_local_shell else []
        patch = [ContainerPatch(hold)] if PATCH in asked.built_in and not asked.has_local_patch else []
        return (*code, *shell, *patch)

    def _clients(self) -> list[FunctionDefinition]:
        """Return the functions that the client runs."""
        tools = self._request.tools
        shell = [local_shell(self._names[SHELL])] if tools.has_local_shell else []
        patch = [patch_function()] if tools.has_local_patch else []
        return [*(tool.offered for tool in tools.clients), *shell, *patch]

    # -- the container ------------------------------------------------------------------------------------------------

    def _recognised(self) -> Conversation:
        echo = self._request.echo
        user = f"{echo.get('user') or ''} {echo.get('safety_identifier') or ''}".strip()
        cache_key, instructions = str(echo.get("prompt_cache_key") or ""), self._request.instructions or ""
        sender = Sender(self._owner, user, self._session, cache_key, instructions)
        is_whole = self._previous is None and self._stored is None
        return self.services.conversations.of(sender, self._request.input, is_whole=is_whole)

    def _find_container(self, choice: ContainerChoice) -> tuple[str | None, str, str]:
        """Return the container that there is, None if a new one is needed; and the memory and network for that."""
        if choice.id is None:
            memory, network = self._given(choice)
            return self._earlier(network), memory, network
        self._look(row := self.services.containers.active(self._owner, choice.id))
        return row.id, row.memory_limit, row.network

    def _hold(self, choice: ContainerChoice) -> Hold:
        containers = self.services.containers
        found, memory, network = self._find_container(choice)
        self._container_id = found or new_id("cntr")
        make = partial(self._make, ContainerSpec("auto", memory, domains=choice.domains, origin="response"))
        if found is None and not choice.file_ids:
            containers.check_room(self._owner)
            return Hold(containers, self._container_id, make, network)
        if found is None:
            make()
        self._bring(choice.file_ids)
        return Hold(containers, self._container_id, network=network)

    def _given(self, choice: ContainerChoice) -> tuple[str, str]:
        """Return the memory tier and the network that a new container gets."""
        containers = self.services.containers
        try:
            return check_memory(choice.memory, containers.config), check_network(choice.domains, containers.config)
        except MemoryRefused as exc:
            raise invalid(exc.message, f"{choice.path}.memory_limit") from exc
        except NetworkRefused as exc:
            raise invalid(exc.message, f"{choice.path}.network_policy", "unsupported_value") from exc

    def _make(self, spec: ContainerSpec) -> None:
        if self.services.store.get(ContainerRecord, self._container_id) is None:
            self.services.containers.create(self._owner, spec, self._container_id)
            self._has_made = True
            for parts in self._files_before:
                self._input_files(None).restore(parts, self._container_id)

    def _earlier(self, network: str) -> str | None:
        """Return the conversation's own container, if it is not expired and has this network."""
        named = self._earlier_id or container_of(self._request.input)
        known = self.services.conversations.find(self._known) if self._known else Known()
        named = named or known.container_id
        if not named:
            if known.was_lost:
                self._note_loss()
            return None
        with contextlib.suppress(ContainerNotFound, ContainerExpired):
            row = self.services.containers.active(self._owner, named)
            if row.network == network:
                self._look(row)
                return row.id
        self._note_loss()
        return None

    def _note_loss(self) -> None:
        """Note it for the model, and which files of earlier turns a new container gets again.

        What the request itself holds of the conversation brings its files by itself.
        """
        store, most = self.services.store, self.services.config.max_conversation_bytes
        self._files_before = files_before(store, self._owner, self._request.previous_response_id, most)
        self._notes.append(f"{LOST} {FILES_BACK}" if self._files_before else LOST)

    def _bring(self, file_ids: tuple[str, ...]) -> None:
        self._brought = self.services.files.bring(self._owner, self._container_id, file_ids)
        for upload, name in self._brought.items():
            if name != upload.filename:
                self._notes.append(f"The file {upload.filename} ({upload.id}) is at {SHOWN_DIR}/{name}.")

    # -- what the pure parts ask for ----------------------------------------------------------------------------------

    def _past(self, hold: Hold | None) -> CallHistory:
        services = self.services
        hidden = hidden_of(services.store, services.recent_fields, self._owner, self._request.input)
        config, files = services.config, self._input_files(hold)
        opened = partial(services.seal.opened, self._owner)
        names = (config.tool_name, config.shell_name)
        return CallHistory(*names, file_part=files.part, opened=opened, **self._hidden(hidden))

    def _hidden(self, hidden: Hidden) -> dict[str, Any]:
        """Return what a history asks for of what no client sees."""
        fields = hidden.server_fields

        def server_fields(item: Mapping[str, Any]) -> Json | None:
            found = fields.get(str(item.get("id"))) or fields.get(call_key(self._owner, item) or "")
            return json.loads(found) if found else None

        return {"told": hidden.told.get, "server_fields": server_fields}

    def _input_files(self, hold: Hold | None) -> InputFiles:
        services, find = self.services, upload_finder(self.services.uploads, self._owner)
        return InputFiles(services.files, find, hold, services.config.max_body_bytes, self._brought)
