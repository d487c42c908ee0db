"""What every route does: read a body within its bounds, know its owner, answer JSON, list in pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_tools.gateway.failures import invalid, too_large
from agent_tools.gateway.fields import Fields, scrubbed
from agent_tools.gateway.services import Services


class Json(Response):
    """A JSON answer, in ASCII."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes."""
        return json.dumps(content, separators=(",", ":")).encode()


def services_of(request: Request) -> Services:
    """The gateway's parts."""
    services: Services = request.app.state.services
    return services


def owner_of(request: Request) -> str:
    """Whose request it is; the door has found out."""
    return str(request.scope["owner"])


async def raw_body(request: Request) -> bytes:
    """The body's bytes.

    Raises:
        ApiError: 413.
    """
    limit, body = services_of(request).config.max_body_bytes, bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large(f"The request is larger than {limit:,} bytes.")
    return bytes(body)


def json_of(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is.

    Raises:
        ApiError: 400.
    """
    try:
        value = scrubbed(json.loads(body or b"{}"))
    except (ValueError, RecursionError) as exc:
        raise invalid("We could not parse the JSON body of your request.") from exc
    if not isinstance(value, dict):
        raise invalid("The body of a request is a JSON object.")
    return value


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    return json_of(await raw_body(request))


def page(request: Request, rows: Sequence[Mapping[str, Any]], shown: Callable[[Any], Any]) -> Json:
    """One page of a list whose rows come oldest first: `limit`, `order` and `after` of the query."""
    query = Fields({**request.query_params, **({"limit": _int(request)} if "limit" in request.query_params else {})})
    limit = query.integer("limit", 1, 100) or 20
    ordered = list(rows) if query.text("order") == "asc" else list(reversed(rows))
    after = query.text("after")
    if after:
        places = [index for index, row in enumerate(ordered) if row["id"] == after]
        ordered = ordered[places[0] + 1 :] if places else []
    data = [shown(row) for row in ordered[:limit]]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return Json({"object": "list", "data": data, **ends, "has_more": len(ordered) > limit})


def _int(request: Request) -> Any:
    value = request.query_params["limit"]
    return int(value) if value.isdecimal() else value
