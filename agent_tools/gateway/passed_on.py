"""Further endpoints of the upstream: requests and answers are passed on unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.gateway.anthropic.routes import count_message_tokens, create_message
from agent_tools.gateway.config import BESIDE_V1
from agent_tools.gateway.http import key_still_valid, raw_body, services_of
from agent_tools.gateway.requests.api_errors import ApiError

_V1 = "/v1/"


def proxied_routes(endpoints: Sequence[str]) -> list[Route]:
    """Return a route for each of these names."""
    own = {"messages": create_message, "messages/count_tokens": count_message_tokens}
    return [Route(_V1 + name, own.get(name, pass_on), methods=["POST"]) for name in endpoints]


async def pass_on(request: Request) -> Response:
    """POST /v1/ and the name of an endpoint."""
    name, services = request.scope["path"].removeprefix(_V1), services_of(request)
    if name not in services.config.endpoints:  # a route's end is also before a newline
        raise ApiError(404, "Not Found.", code="unknown_url")
    body = await raw_body(request)
    path = services.upstream.beside_v1(name) if name in BESIDE_V1 else name
    return await services.upstream.pass_on(request, path, body, key_still_valid(request))
