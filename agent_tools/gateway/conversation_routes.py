"""The routes under `/v1/conversations`.

The fields are those of https://platform.openai.com/docs/api-reference/conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.gateway.conversations.stored import StoredConversations, check_item_ids, conversation_shown
from agent_tools.gateway.http import (
    JsonResponse,
    JsonTextResponse,
    asked_page,
    json_object,
    list_of_texts,
    owner_of,
    services_of,
)
from agent_tools.gateway.requests.api_errors import missing
from agent_tools.gateway.requests.fields import Metadata, Objects, RequestModel, read, wrong
from agent_tools.gateway.responses.history import CallHistory, messages_of_items
from agent_tools.gateway.responses.listed_items import listed_items
from agent_tools.gateway.responses.stored_items import resolved
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import StoredConversation
from agent_tools.models.base import JsonObject

MAX_ITEMS = 20  # added by one request, as at OpenAI
_ANY_FILE: JsonObject = {"type": "text", "text": ""}


def _few(items: list[Any]) -> list[Any]:
    if len(items) > MAX_ITEMS:
        raise wrong(f"At most {MAX_ITEMS} items can be added at once: send several requests.")
    return items


class _NewConversation(RequestModel):
    metadata: Metadata = {}
    items: Annotated[Objects, AfterValidator(_few)] = []


class _Metadata(RequestModel):
    metadata: Metadata


async def create_conversation(request: Request) -> Response:
    """POST /v1/conversations."""
    given = read(_NewConversation, await json_object(request))
    return JsonResponse(
        await run_in_threadpool(_create, services_of(request), owner_of(request), given.metadata, given.items)
    )


def _create(services: Services, owner: str, metadata: JsonObject, given: list[JsonObject]) -> JsonObject:
    items = _items(services, owner, given)
    return conversation_shown(services.stored_conversations.create(owner, metadata, items))


def retrieve_conversation(request: Request) -> Response:
    """GET /v1/conversations/{id}."""
    return JsonResponse(conversation_shown(_found(request)))


async def update_conversation(request: Request) -> Response:
    """POST /v1/conversations/{id}: its metadata."""
    return JsonResponse(await run_in_threadpool(_update, request, read(_Metadata, await json_object(request)).metadata))


def _update(request: Request, metadata: JsonObject) -> JsonObject:
    found = _found(request)
    _conversations(request).rename(found.id, metadata)
    return {**conversation_shown(found), "metadata": metadata}


def delete_conversation(request: Request) -> Response:
    """DELETE /v1/conversations/{id}: with its items."""
    found = _found(request)
    _conversations(request).delete(found.id)
    return JsonResponse({"id": found.id, "object": "conversation.deleted", "deleted": True})


async def create_items(request: Request) -> Response:
    """POST /v1/conversations/{id}/items."""
    given = read(_NewConversation, await json_object(request)).items
    if not given:
        raise missing("items")
    return await run_in_threadpool(_append, request, given)


def _append(request: Request, given: list[JsonObject]) -> Response:
    found, conversations = _found(request), _conversations(request)
    items = _items(services_of(request), found.owner, given)
    conversations.check_room(found.owner, found.id, items)
    return list_of_texts(conversations.append(found, items))


def list_items(request: Request) -> Response:
    """GET /v1/conversations/{id}/items."""
    return list_of_texts(*_conversations(request).page(_found(request).id, *asked_page(request)))


def retrieve_item(request: Request) -> Response:
    """GET /v1/conversations/{id}/items/{item_id}."""
    return JsonTextResponse(_conversations(request).item(_found(request).id, request.path_params["item_id"]).text)


def delete_item(request: Request) -> Response:
    """DELETE /v1/conversations/{id}/items/{item_id}; the answer is the conversation."""
    found = _found(request)
    _conversations(request).delete_item(found.id, request.path_params["item_id"])
    return JsonResponse(conversation_shown(found))


def _conversations(request: Request) -> StoredConversations:
    return services_of(request).stored_conversations


def _found(request: Request) -> StoredConversation:
    return _conversations(request).find(owner_of(request), request.path_params["conversation_id"])


def _items(services: Services, owner: str, given: list[JsonObject]) -> list[JsonObject]:
    """Return the items in their stored form, each with an id."""
    config = services.config
    items = resolved(services.store, owner, given, config.max_response_bytes, "items")

    def no_file(_: Mapping[str, Any], __: str, ___: bool) -> JsonObject:
        return _ANY_FILE

    opened = partial(services.reasoning_cipher.opened, owner)
    past = CallHistory(config.tool_name, config.shell_name, lambda _: None, no_file, opened)
    messages_of_items(items, past, "items")
    check_item_ids(items, "items")
    return list(listed_items(items))


_ONE, _ITEMS = "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"
routes = [
    Route("/v1/conversations", create_conversation, methods=["POST"]),
    Route(_ONE, retrieve_conversation, methods=["GET"]),
    Route(_ONE, update_conversation, methods=["POST"]),
    Route(_ONE, delete_conversation, methods=["DELETE"]),
    Route(_ITEMS, create_items, methods=["POST"]),
    Route(_ITEMS, list_items, methods=["GET"]),
    Route(f"{_ITEMS}/{{item_id}}", retrieve_item, methods=["GET"]),
    Route(f"{_ITEMS}/{{item_id}}", delete_item, methods=["DELETE"]),
]
