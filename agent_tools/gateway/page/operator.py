"""The routes of the operator's view of the page: what all keys run, and to stop, limit and revoke.

They are for keys and groups made with `--operator`, and for everyone on a gateway without keys. Each change is a line
in the audit log, written first: if that fails, nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import audit_log
from agent_tools.errors import InvalidParams
from agent_tools.gateway.http import JsonResponse, json_object, owner_of, services_of
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.requests.api_errors import ApiError, Refusal, invalid
from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import ApiKey
from agent_tools.models.base import JsonObject
from agent_tools.sandbox.audit import AuditUnavailable
from agent_tools.text import utc_text

MAX_SHOWN = 200  # rows of a table
_Limit = Annotated[int, Field(ge=0, lt=2**31)] | None


class _StoppedContainer(RequestModel):
    container: Needed


class _ChangedKey(RequestModel):
    key: Needed
    max_containers: _Limit = None
    max_requests_per_minute: _Limit = None


def operator_state(request: Request) -> Response:
    """GET /page/operator: the containers of all keys that have a sandbox, and the last failures of this gateway."""
    services = _of_operator(request)
    living, running, now = services.membership.living(), services.containers.running(), services.containers.clock()
    rows = services.store.newest(ContainerRecord, MAX_SHOWN, status="active", gateway=list(living))
    shown = [
        {
            **_names(services, row.owner),
            "id": row.id,
            "name": row.name,
            "origin": row.origin,
            "memory": row.memory_limit,
            "bytes": row.bytes,
            "sandbox": {None: "starting", False: "idle", True: "busy"}[running.get(row.id)],
            "elsewhere": living[row.gateway],
            "age": max(0.0, now - row.created_at),
            "used": max(0.0, now - row.last_active_at),
        }
        for row in rows
    ]
    return JsonResponse({"containers": shown, "failures": services.failures.all(), "now": time.time()})


def operator_keys(request: Request) -> Response:
    """GET /page/operator/keys: keys and groups, and what keys and users used this month; `find` is part of a name."""
    services, text = _of_operator(request), request.query_params.get("find", "").lower()
    keys = [row for row in NamedKeys(services.store).all() if text in f"{row.id}\n{row.group or ''}".lower()]
    keys.sort(key=lambda row: (row.revoked_at is not None, -row.created_at))
    month = utc_text(time.time())[:7]
    found = services.store.usage_of(month)
    used = [row for row in found if text in f"{row['key_name']}\n{row['user_name']}".lower()]
    used.sort(key=lambda row: -row["seconds"])
    return JsonResponse(
        {
            "keys": [_key_shown(row) for row in keys[:MAX_SHOWN]],
            "keys_left_out": len(keys[MAX_SHOWN:]),
            "month": month,
            "usage": used[:MAX_SHOWN],
            "usage_left_out": len(used[MAX_SHOWN:]),
        }
    )


async def stop_container(request: Request) -> Response:
    """POST /page/operator/stop: end all that runs in a `container`, and its sandbox. Its files stay."""
    services = _of_operator(request)
    id_ = read(_StoppedContainer, await json_object(request)).container

    with _audited():
        await run_in_threadpool(services.containers.stop_one, id_, _by(request))
    return JsonResponse({"stopped": id_})


async def limit_key(request: Request) -> Response:
    """POST /page/operator/limit: set both limits of a `key`; without a value the gateway's holds. Volumes stay."""
    return await _change_key(request, "key_limited")


async def revoke_key(request: Request) -> Response:
    """POST /page/operator/revoke: revoke a `key`, or a group."""
    return await _change_key(request, "key_revoked")


async def _change_key(request: Request, event: str) -> Response:
    services = _of_operator(request)
    given = read(_ChangedKey, await json_object(request))
    numbers = {"max_containers": given.max_containers, "max_requests_per_minute": given.max_requests_per_minute}

    def change() -> JsonObject:
        named = NamedKeys(services.store)
        try:
            row = named.find(given.key)
        except InvalidParams as exc:
            raise invalid(str(exc), "key", "key_not_found") from exc
        is_limit = event == "key_limited"
        log = audit_log(services.config)
        log.write(event, **_by(request), target=row.id, **(numbers if is_limit else {}))
        if is_limit:
            named.limit(row.id, KeyLimits(**numbers, volumes=row.volumes))
        else:
            named.revoke(row.id)
        return _key_shown(named.find(row.id))

    with _audited():
        return JsonResponse(await run_in_threadpool(change))


def _of_operator(request: Request) -> Services:
    """Return the services for a request of an operator.

    Raises:
        ApiError: 403, its key is not an operator's, or a page of another site sent it.
    """
    if not request.scope["operator"]:
        message = "This key is not an operator's: make one by `agent-tools keys add NAME --operator`."
        raise ApiError(403, message, code="access_denied")
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal("foreign_origin", 403, "Pages of another site are refused.", "foreign_origin")
    return services_of(request)


def _by(request: Request) -> Mapping[str, str]:
    """Return the audit log's fields of the operator."""
    return {"owner": owner_of(request), "key": request.scope["key_name"], "user": request.scope["user"]}


@contextmanager
def _audited() -> Iterator[None]:
    """Answer 503 if the audit log cannot be written, so that nothing is changed."""
    try:
        yield
    except AuditUnavailable as exc:
        raise ApiError(503, str(exc), code="audit_unavailable") from exc


def _names(services: Services, owner: str) -> Mapping[str, str]:
    """Return the names of an owner; without them, such as of a user of another gateway, the owner stands for itself."""
    if not services.keys.has(owner):
        return {"key": "", "user": owner}
    return {"key": services.keys.name_of(owner), "user": services.keys.user_of(owner)}


def _key_shown(row: ApiKey) -> JsonObject:
    return {
        "name": row.id,
        "group": row.group,
        "for_users": row.for_users,
        "operator": row.operator,
        "made": row.created_at,
        "revoked": row.revoked_at,
        "max_containers": row.max_containers,
        "max_requests_per_minute": row.max_requests_per_minute,
        "volumes": row.volumes,
    }


routes = [
    Route("/page/operator", operator_state, methods=["GET"]),
    Route("/page/operator/keys", operator_keys, methods=["GET"]),
    Route("/page/operator/stop", stop_container, methods=["POST"]),
    Route("/page/operator/limit", limit_key, methods=["POST"]),
    Route("/page/operator/revoke", revoke_key, methods=["POST"]),
]
