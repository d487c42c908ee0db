"""The plan of a response in three steps: find the earlier conversation, choose a container, plan the turn.

Each step returns a frozen value that the next one takes. They ask the store, so they are not for the event loop.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath

from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.containers.failures import (
    ContainerExpired,
    ContainerNotFound,
    DiskFull,
    MemoryRefused,
    NetworkRefused,
    RowsAway,
)
from agent_tools.containers.ids import new_id
from agent_tools.containers.network import check_network
from agent_tools.containers.records import ContainerRecord, Upload
from agent_tools.containers.spec import ContainerSpec, check_memory, skill_copies
from agent_tools.gateway.background import ACTIVE
from agent_tools.gateway.conversations.fingerprint import ConversationFingerprint, ConversationIdentity
from agent_tools.gateway.conversations.recognised import FoundContainer
from agent_tools.gateway.conversations.stored import ServerOnlyFields, check_item_ids
from agent_tools.gateway.files import SHOWN_DIR
from agent_tools.gateway.requests.api_errors import full, invalid
from agent_tools.gateway.responses.approvals import Decision
from agent_tools.gateway.responses.client_shell import local_shell
from agent_tools.gateway.responses.composer import ResponseContext
from agent_tools.gateway.responses.history import CallHistory, check_outputs, container_of, messages_of_items
from agent_tools.gateway.responses.input_files import InputFiles, upload_finder
from agent_tools.gateway.responses.listed_items import listed_items
from agent_tools.gateway.responses.request import ResponseRequest
from agent_tools.gateway.responses.storage import check_quota
from agent_tools.gateway.responses.stored_items import (
    call_key,
    decided,
    files_before,
    hidden_of,
    resolved,
)
from agent_tools.gateway.responses.tools import (
    CODE,
    PATCH,
    SHELL,
    ContainerChoice,
    Tools,
    first_of_each_name,
    loaded_tools,
    named_choice,
    with_loaded,
)
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import ResponseEnd, StoredConversation
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.patch import PATCH_NAME, ContainerPatch, patch_function
from agent_tools.gateway.tools.shell import ContainerShell
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.gateway.turn_job import HostedTool, limited_turn
from agent_tools.models.base import FunctionDefinition, Json, JsonObject
from agent_tools.results.execution import Picture

LOST = (
    "The container that earlier calls ran in is gone: its variables and files are lost; a new one is used from now on."
)
FILES_BACK = "The user's files were copied into it again, in their original state."


@dataclass(frozen=True)
class FoundConversation:
    """A request with resolved references, and the earlier conversation.

    Attributes:
        recognised: the conversation as the client sent it, if a tool here has a container.
        previous: the end of the response that it goes on from.
        stored: the conversation of `/v1/conversations` that it names.
        items: those of `stored`, with what is not shown of them.
    """

    request: ResponseRequest
    owner: str
    recognised: ConversationFingerprint | None = None
    previous: ResponseEnd | None = None
    stored: StoredConversation | None = None
    items: tuple[Sequence[JsonObject], ServerOnlyFields] = ((), ServerOnlyFields())

    @property
    def earlier(self) -> str | None:
        """The id of the container that the conversation had before, as it is stored."""
        before = self.previous or self.stored
        return before.container_id if before else None


@dataclass(frozen=True)
class ChosenContainer:
    """The container of a response; none without a tool that runs in one.

    Attributes:
        notes: sentences for the model on the container.
        brought: the names of uploads in it.
    """

    container_id: str = ""
    lease: ContainerLease | None = None
    notes: tuple[str, ...] = ()
    brought: Mapping[Upload, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything for a response's turn. The next response builds on `conversation`, which is without `instructions`.

    `decisions` are those on calls of MCP servers.
    """

    found: FoundConversation
    conversation: list[JsonObject]
    instructions: list[JsonObject]
    turn: ToolLoop
    context: ResponseContext
    lease: ContainerLease | None
    tools: tuple[HostedTool, ...]
    upstream_key: str
    decisions: Sequence[Decision] = ()

    @property
    def request(self) -> ResponseRequest:
        """The request, with its references resolved."""
        return self.found.request

    @property
    def owner(self) -> str:
        """The owner of the key that asks."""
        return self.found.owner


# -- first: what was said before --------------------------------------------------------------------------------------


def find(services: Services, owner: str, request: ResponseRequest, session: str = "") -> FoundConversation:
    """Find the conversation before a request, without changes. `session` is the one that its headers name.

    Raises:
        ApiError: it refers to something that does not exist, or cannot be sent on.
    """
    items = resolved(services.store, owner, request.input, services.config.max_response_bytes)
    request = replace(request, input=items)
    previous = _previous(services, owner, request)
    stored = None
    if request.conversation is not None:
        stored = services.stored_conversations.find(owner, request.conversation)
        services.stored_conversations.check_room(owner, stored.id, items)
        check_item_ids(items, "input")
        request = replace(request, input=list(listed_items(items)))  # with the ids that they will have there
    kept = services.stored_conversations.read(stored.id) if stored else FoundConversation.items
    request = _with_tools_brought(request, previous, kept[0])
    recognised = None
    if request.tools.container:
        is_whole = previous is None and stored is None
        identity = _identity(owner, request, session)
        recognised = services.conversations.of(identity, request.input, is_whole=is_whole)
    return FoundConversation(request, owner, recognised, previous, stored, kept)


def _previous(services: Services, owner: str, request: ResponseRequest) -> ResponseEnd | None:
    id_ = request.previous_response_id
    if id_ is None:
        return None
    previous = request.recent or services.store.get(ResponseEnd, id_, owner=owner)
    if previous is None:
        message = f"Previous response with id '{id_[:80]}' not found."
        raise invalid(message, "previous_response_id", "previous_response_not_found")
    if previous.status in ACTIVE:
        message = f"Previous response with id '{id_[:80]}' has not ended: wait for its end, or cancel it."
        raise invalid(message, "previous_response_id", "previous_response_not_ended")
    if (size := len(previous.conversation)) > (most := services.config.max_conversation_bytes):
        raise full(f"The conversation has {size:,} bytes, and {most:,} are the maximum: begin another one.")
    return previous  # a failed one is continued from the rounds that were done


def _with_tools_brought(
    request: ResponseRequest, previous: ResponseEnd | None, before: Sequence[JsonObject]
) -> ResponseRequest:
    """Add the tools that items of the conversation before have brought: a client does not repeat them."""
    earlier = json.loads(previous.tools) if previous else [tool for _, tool in loaded_tools(before)]
    tools = with_loaded(request.tools, (("tools", tool) for tool in earlier), "ignore")
    new = (tool for _, tool in loaded_tools(request.input))
    return replace(request, tools=tools, brought=first_of_each_name([*new, *earlier]))


def _identity(owner: str, request: ResponseRequest, session: str) -> ConversationIdentity:
    echo = request.echo
    user = f"{echo.get('user') or ''} {echo.get('safety_identifier') or ''}".strip()
    return ConversationIdentity(
        owner, user, session, str(echo.get("prompt_cache_key") or ""), request.instructions or ""
    )


# -- second: its container --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    """The existing container, None if a new one is needed, with its memory, network and skills.

    It `was_lost` if the conversation had one that cannot be used any more.
    """

    id: str | None
    memory: str
    network: str
    was_lost: bool = False
    skills: str = ""


def choose(services: Services, found: FoundConversation) -> ChosenContainer:
    """Choose the container of a response; one that gets files is made now, another new one at the first call.

    Raises:
        ApiError: the request describes a container that cannot be had.
        ContainersError: its container cannot be used or made, or another gateway has its sandbox.
    """
    choice = found.request.tools.container
    if choice is None:
        return ChosenContainer()
    containers, owner = services.containers, found.owner
    place = _candidate(services, found, choice)
    new_skills = {} if place.id else services.skills.resolve(owner, choice.skills, f"{choice.path}.skills")
    skills = services.skills.of_container(place.skills) if place.id else tuple(new_skills.values())
    id_, notes, files = place.id or new_id("cntr"), [], list[list[JsonObject]]()
    if place.was_lost:  # files of messages in the request itself are copied anyway
        most = services.config.max_conversation_bytes
        files = files_before(services.store, owner, found.request.previous_response_id, most)
        notes.append(f"{LOST} {FILES_BACK}" if files else LOST)

    def make() -> None:
        if services.store.get(ContainerRecord, id_) is None:
            spec = ContainerSpec("auto", place.memory, domains=choice.domains, origin="response", skills=new_skills)
            containers.create(owner, spec, id_)
            for parts in files:
                _input_files(services, owner, ChosenContainer()).restore(parts, id_)

    lease = ContainerLease(containers, id_, make if place.id is None else None, place.network, skills)
    if place.id is None and not choice.file_ids:
        containers.check_room(owner)
        return ChosenContainer(id_, lease, tuple(notes))
    try:
        lease.ensure()
        brought = services.files.bring(owner, id_, choice.file_ids)
    except BaseException:
        discard(services, owner, lease)
        raise
    for upload, name in brought.items():
        if name != upload.filename:
            notes.append(f"The file {upload.filename} ({upload.id}) is at {SHOWN_DIR}/{name}.")
    return ChosenContainer(id_, lease, tuple(notes), brought)


def discard(services: Services, owner: str, lease: ContainerLease | None) -> None:
    """Discard the new container of a response that could not be made."""
    if lease and lease.has_made:
        services.containers.discard(owner, lease.container_id)


def _candidate(services: Services, found: FoundConversation, choice: ContainerChoice) -> _Candidate:
    if choice.id is not None:
        row = services.containers.active(found.owner, choice.id)
        services.containers.leases.check_holder(row)
        return _Candidate(row.id, row.memory_limit, row.network, skills=row.skills)
    config = services.containers.config
    try:
        new = _Candidate(None, check_memory(choice.memory, config), check_network(choice.domains, config))
    except MemoryRefused as exc:
        raise invalid(exc.message, f"{choice.path}.memory_limit") from exc
    except NetworkRefused as exc:
        raise invalid(exc.message, f"{choice.path}.network_policy", "unsupported_value") from exc
    known = services.conversations.find(found.recognised) if found.recognised else FoundContainer()
    named = found.earlier or container_of(found.request.input) or known.container_id
    if not named:
        return replace(new, was_lost=known.was_lost)
    with contextlib.suppress(ContainerNotFound, ContainerExpired):
        row = services.containers.active(found.owner, named)
        if row.network == new.network and list(skill_copies(row.skills)) == [each.key for each in choice.skills]:
            services.containers.leases.check_holder(row)
            return replace(new, id=row.id, skills=row.skills)
    return replace(new, was_lost=True)


# -- third: its turn --------------------------------------------------------------------------------------------------


def plan(services: Services, found: FoundConversation, chosen: ChosenContainer, upstream_key: str) -> Plan:
    """Plan the turn of a response.

    Raises:
        ApiError: the conversation cannot be sent on.
        ContainersError: a file in it cannot be put into the container.
    """
    request = found.request
    if found.stored:
        services.stored_conversations.touch(found.stored.id)
    names = built_in_names(services, request.tools)
    before, decisions = _before(services, found, chosen)
    hidden = hidden_of(services.store, services.recent_fields, found.owner, request.input)
    conversation = [*before, *messages_of_items(request.input, _history(services, found.owner, chosen, hidden))]
    check_outputs(request.input, before)
    text = "\n\n".join(filter(None, [request.instructions, *chosen.notes]))
    tools = hosted_tools(request.tools, chosen.lease) if chosen.lease else ()
    turn = limited_turn(
        services,
        (request.model, upstream_key),
        tools,
        client_functions(services, request.tools),
        named_choice(request.options, names),
        max_calls=request.max_tool_calls,
        show_pictures=services.config.pictures_shown(request.model),
    )
    instructions = [{"role": "system", "content": text}] if text else []
    context = _context(services, found, chosen, names)
    return Plan(found, conversation, instructions, turn, context, chosen.lease, tools, upstream_key, decisions)


def check_request(services: Services, owner: str, request: ResponseRequest) -> ResponseRequest:
    """Check that a response can be stored, and that its tools have different names; return the request.

    On a full disk, text that a client waits for is answered without being stored.

    Raises:
        ApiError, DiskFull: as for `check_quota`.
    """
    taken = {tool.name for tool in request.tools.clients}
    for kind, name in built_in_names(services, request.tools).items():
        if name in taken:
            raise invalid(f"A tool cannot be called {name!r} beside the {kind.replace('_', ' ')}.", "tools")
    if request.store:
        try:
            check_quota(services, owner)
        except DiskFull:
            if request.background or request.tools.container:
                raise
            return replace(request, store=False)
    return request


def built_in_names(services: Services, tools: Tools) -> dict[str, str]:
    """Return the names for the model of the built-in tools that may be called."""
    names = {CODE: services.config.tool_name, SHELL: services.config.shell_name, PATCH: PATCH_NAME}
    return {kind: name for kind, name in names.items() if kind in tools.built_in}


def hosted_tools(tools: Tools, lease: ContainerLease) -> tuple[HostedTool, ...]:
    """Return the built-in tools that run in a container."""
    kinds: dict[str, type[HostedTool]] = {CODE: ContainerTool, SHELL: ContainerShell, PATCH: ContainerPatch}
    return tuple(kind(lease) for name, kind in kinds.items() if name in tools.built_in and not tools.is_local(name))


def client_functions(services: Services, tools: Tools) -> list[FunctionDefinition]:
    """Return the functions that the client runs."""
    shell = [local_shell(services.config.shell_name, tools.local_skills)] if tools.is_local(SHELL) else []
    patch = [patch_function()] if tools.is_local(PATCH) else []
    return [*(tool.offered for tool in tools.clients), *shell, *patch]


def _before(
    services: Services, found: FoundConversation, chosen: ChosenContainer
) -> tuple[list[JsonObject], list[Decision]]:
    """Return the messages before the input, and the decisions on calls of MCP servers."""
    store, owner, given = services.store, found.owner, found.request.input
    if found.stored is None:
        before = json.loads(found.previous.conversation) if found.previous else []
        return before, decided(store, owner, given, ())
    items, hidden = found.items
    history = _history(services, owner, chosen, hidden)
    return messages_of_items(items, history, "conversation.items"), decided(store, owner, given, items)


def _history(services: Services, owner: str, chosen: ChosenContainer, hidden: ServerOnlyFields) -> CallHistory:
    def server_fields(item: Mapping[str, object]) -> Json | None:
        fields = hidden.server_fields
        text = fields.get(str(item.get("id"))) or fields.get(call_key(owner, item) or "")
        return json.loads(text) if text else None

    return CallHistory(
        services.config.tool_name,
        services.config.shell_name,
        file_part=_input_files(services, owner, chosen).part,
        opened=partial(services.reasoning_cipher.opened, owner),
        tool_answer=hidden.tool_answer.get,
        server_fields=server_fields,
    )


def _input_files(services: Services, owner: str, chosen: ChosenContainer) -> InputFiles:
    uploads = upload_finder(services.uploads, owner)
    return InputFiles(services.files, uploads, chosen.lease, services.config.max_body_bytes, chosen.brought)


def _context(
    services: Services, found: FoundConversation, chosen: ChosenContainer, names: Mapping[str, str]
) -> ResponseContext:
    config, id_, lease = services.config, chosen.container_id, chosen.lease

    def find_file(name: str) -> str | None:
        with contextlib.suppress(RowsAway):  # an answer without a citation is better than none
            file = services.files.named(id_, name) if lease and lease.has_container else None
            return file.id if file else None
        return None

    left = config.max_response_bytes // 4  # of URLs with pictures, which several events repeat

    def image_url(picture: Picture) -> str | None:
        nonlocal left
        size = len(picture.data) * 4 // 3
        is_large = size > left
        file_id = find_file(PurePath(picture.path).name) if is_large or config.image_urls == "content" else None
        if file_id:
            return f"{config.root_path}/v1/containers/{id_}/files/{file_id}/content"
        left -= 0 if is_large else size
        return None if is_large else picture.data_url

    seal = partial(services.reasoning_cipher.sealed, found.owner) if found.request.with_encrypted else None
    return ResponseContext(id_, find_file if lease else None, image_url, names, seal)
