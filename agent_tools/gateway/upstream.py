"""The upstream server: its models, for turns that run here, and requests that are passed on unchanged."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import httpx
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse

from agent_tools.bodies.json_body import BodyRefused, read_json, written
from agent_tools.gateway.config import ANTHROPIC, GatewayConfig
from agent_tools.gateway.model_ids import MAX_MODEL_ID, unknown_model
from agent_tools.gateway.requests.api_errors import ApiError, code_execution_refused, revoked, upstream_unauthorized
from agent_tools.gateway.requests.auth import key_of
from agent_tools.gateway.sse import AT_ONCE, while_there
from agent_tools.models.base import JsonObject, Model
from agent_tools.models.dialect.profile import UpstreamProfile, read_profile
from agent_tools.models.openai import CONNECT_TIMEOUT, IDLE_TIMEOUT, OpenAIModel
from agent_tools.models.openai_responses import ResponsesModel
from agent_tools.models.reply import Waiting
from agent_tools.models.server_errors import redirect_target
from agent_tools.settings import Endpoint
from agent_tools.tracing import send_context

ASK_TIMEOUT = 10.0  # seconds
STATE_AGE = 10.0  # seconds for which `problem` answers what it found
LACK_AGE = 300.0  # seconds for which an upstream without Anthropic's API is not asked for it again
NO_KEY = "none"
"""The key that the upstream is asked with if neither the gateway nor the client has one."""
NO_ANSWER = "does not answer. Start it, or check the URL: it usually ends in /v1."
MAX_MODELS = 64  # models whose connections are kept
_KEPT = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
_LIMITS = ("x-ratelimit-", "ratelimit", "anthropic-ratelimit-")  # all that begin so
_PASSED = ("accept", "content-type", "x-request-id")
_OF_ANTHROPIC = ("anthropic-version", "anthropic-beta")
_OF_A_KEY = ("openai-organization", "openai-project")
"""Sent on only with a client's own key: a client does not choose an organization for the gateway's key."""


class Upstream:
    """One per gateway; `aclose` it at the end. `waiting` is around each wait for a model's answer."""

    def __init__(self, config: GatewayConfig, waiting: Waiting = nullcontext) -> None:
        self._config = config
        self._waiting = waiting
        self._profile = read_profile(config.upstream_profile)
        self._lock = threading.Lock()
        self._problem = ("", -STATE_AGE)  # and the time at which it was looked for
        self._lacks_messages_at = -LACK_AGE
        self._models: OrderedDict[tuple[str, str], OpenAIModel] = OrderedDict()
        timeout = httpx.Timeout(IDLE_TIMEOUT, connect=CONNECT_TIMEOUT)
        self._client = httpx.AsyncClient(
            base_url=config.upstream, timeout=timeout, limits=httpx.Limits(max_connections=None)
        )

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the key that the upstream is asked with.

        Raises:
            ApiError: 401, it is no key: no header can hold it.
        """
        key = self._config.upstream_key or (key_of(headers) if self._config.passes_clients_keys else "") or NO_KEY
        if not key.isascii():
            raise ApiError(401, "Incorrect API key provided: it has characters beyond ASCII.", code="invalid_api_key")
        return key

    def model(self, name: str, key: str) -> Model:
        """Return a model of the upstream; its connections are kept for the next time.

        Raises:
            ApiError: 404, its name is too long to be kept.
        """
        if len(name) > MAX_MODEL_ID:
            raise unknown_model(name)
        with self._lock:
            known = self._models.pop((name, key), None)
            if known is None:
                known = self._new_model(name, Endpoint(self._config.upstream, key))
            self._models[name, key] = known
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)  # it may be in use still; its connections end with it
        return known

    def learned(self, name: str, key: str) -> UpstreamProfile:
        """Return what is known of the server of a model."""
        with self._lock:
            known = self._models.get((name, key))
        return known.dialect.profile if known else self._profile

    @property
    def takes_format_beside_tools(self) -> bool:
        """The upstream lets a model call tools although a format is asked for."""
        return self._config.upstream_api == "responses" or self._profile.format == "always"

    @property
    def has_no_messages(self) -> bool:
        """The upstream has lately had no /v1/messages."""
        return time.monotonic() - self._lacks_messages_at < LACK_AGE

    def record_no_messages(self) -> None:
        """Note that the upstream has no /v1/messages, but answers chat completions for the same request."""
        if not self.has_no_messages:
            self._lacks_messages_at = time.monotonic()

    def _new_model(self, name: str, endpoint: Endpoint) -> OpenAIModel:
        common: Any = {
            "max_reply_bytes": self._config.max_reply_bytes,
            "waiting": self._waiting,
            "leaves_waiting": True,
            "on_request": send_context,
            "profile": self._profile,
        }
        if self._config.upstream_api == "responses":
            return ResponsesModel(name, endpoint, passed=self._config.passed_fields, **common)
        return OpenAIModel(name, endpoint, **common)

    async def is_ready(self) -> bool:
        """Return True if the upstream answers at all."""
        try:
            headers = {"Authorization": f"Bearer {self._config.upstream_key or NO_KEY}"}
            async with self._client.stream("GET", "models", timeout=5.0, headers=headers) as answer:
                return answer.status_code < 500
        except httpx.HTTPError:
            return False

    async def problem(self) -> str:
        """Return the upstream's problem with its remedy, as the end of a sentence; '' if it lists its models."""
        problem, looked_at = self._problem
        if time.monotonic() - looked_at >= STATE_AGE:
            problem = await self._found_problem()
            self._problem = (problem, time.monotonic())
        return problem

    async def _found_problem(self) -> str:
        headers = {"Authorization": f"Bearer {self._config.upstream_key or NO_KEY}"}
        try:
            async with self._client.stream("GET", "models", timeout=5.0, headers=headers) as answer:
                status, target = answer.status_code, redirect_target(answer)
        except httpx.HTTPError:
            return NO_ANSWER
        if target:
            return f"redirects to {target}. Set --upstream to the address that answers itself."
        if status in (401, 403):
            return "" if self._config.passes_clients_keys else "refuses the gateway's key. Check --upstream-key."
        if status == 404:
            return "has no list of models. Check the URL: it usually ends in /v1."
        return "" if status < 400 else f"answers with status {status}. Look at its log."

    async def pass_on(
        self, received: Request, path: str, body: bytes = b"", is_wanted: Callable[[], bool] = lambda: True
    ) -> StreamingResponse:
        """Pass a request on, and the answer back. `path` is fixed or made by `model_path`, never a client's.

        It is cancelled when the answer is no longer needed, such as after the client's key was revoked.

        Raises:
            ApiError: 502 or 504, the upstream cannot be reached, or refuses the gateway's own key; 499, the client has
                hung up.
        """
        headers = received.headers
        passed = (*_PASSED, *_OF_A_KEY) if self._config.passes_clients_keys else _PASSED
        sent = {name: headers[name] for name in passed if headers.get(name, "").isascii() and name in headers}
        sent["Authorization"] = f"Bearer {self.key(headers)}"
        query = None
        if path in ANTHROPIC:
            await _refuse_code_execution(body)
            sent |= self._of_anthropic(headers)
            query = {"beta": "true"} if received.query_params.get("beta") == "true" else None
        request = self._client.build_request(received.method, path, headers=sent, content=body or None, params=query)
        try:
            answer = await while_there(self._client.send(request, stream=True), received.receive)
        except httpx.TimeoutException as exc:
            raise ApiError(504, "The upstream did not answer in time.", code="upstream_timeout") from exc
        except httpx.HTTPError as exc:
            raise ApiError(502, "The upstream cannot be reached.", code="upstream_unavailable") from exc
        if target := redirect_target(answer):
            await answer.aclose()
            message = f"The upstream redirects to {target}: the gateway's --upstream has to be its final address."
            raise ApiError(502, message, code="upstream_error")
        if not 200 <= answer.status_code < 600:
            await answer.aclose()
            raise ApiError(502, "The upstream's answer has no valid HTTP status.", code="upstream_error")
        if answer.status_code in (401, 403) and not self._config.passes_clients_keys:
            await answer.aclose()
            raise upstream_unauthorized()
        is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
        kept = {**dict(_kept(answer.headers)), **(AT_ONCE if is_stream else {})}
        return StreamingResponse(
            _bytes(answer, is_wanted), answer.status_code, kept, background=BackgroundTask(answer.aclose)
        )

    def _of_anthropic(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return what a request of Anthropic's API has besides; its key is `x-api-key`, and servers look for either."""
        found = {name: headers[name] for name in _OF_ANTHROPIC if headers.get(name, "").isascii() and name in headers}
        return {**found, "x-api-key": self.key(headers)}

    async def ask(self, name: str, headers: Mapping[str, str], question: JsonObject, most: int) -> bytes | None:
        """Ask an endpoint beside /v1; return its answer, None if it gives none, or one of more than `most` bytes."""
        sent = {"Authorization": f"Bearer {self.key(headers)}", "Content-Type": "application/json"}
        body, answer = await written(question, json.dumps), bytearray()
        try:
            asking = self._client.stream("POST", self.beside_v1(name), content=body, headers=sent, timeout=ASK_TIMEOUT)
            async with asking as found:
                if found.status_code != 200:
                    return None
                async for chunk in found.aiter_bytes():
                    answer += chunk
                    if len(answer) > most:
                        return None
        except httpx.HTTPError:
            return None
        return bytes(answer)

    def beside_v1(self, name: str) -> str:
        """Return the URL of an endpoint that servers have beside /v1."""
        return f"{self._config.upstream.rstrip('/').removesuffix('/v1')}/{name}"

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()
        with self._lock:
            models, self._models = list(self._models.values()), OrderedDict()
        for model in models:
            model.close()


async def _refuse_code_execution(body: bytes) -> None:
    """Refuse the tool that runs code in Anthropic's API: requests are passed on, and nothing would run it.

    Raises:
        ApiError: 400, the request has it.
        BodyRefused: 413, the request has too many parts to look for it.
    """
    if b"code_execution" not in body:
        return
    try:
        found = await read_json(body, _code_execution)
    except BodyRefused as exc:
        if exc.status_code != 400:  # for any other fault the upstream says what is wrong
            raise
    else:
        if found:
            raise code_execution_refused(found)


def _code_execution(given: Any) -> str:
    """Return the type of the tool that runs code, '' without one."""
    tools = given.get("tools") if isinstance(given, dict) else None
    kinds = [each.get("type") for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    return next((kind for kind in kinds if isinstance(kind, str) and kind.startswith("code_execution")), "")


def _kept(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the upstream's headers that a client gets; the upstream's request id has a name of its own."""
    for name, value in headers.items():
        if not value.isascii():
            continue
        if name in ("x-request-id", "request-id"):
            yield "x-upstream-request-id", value
        elif name in _KEPT or name.startswith(_LIMITS):
            yield name, value


async def _bytes(answer: httpx.Response, is_wanted: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield an answer; if it is cut off or cannot be decoded, end without its end, so that the client notices."""
    try:
        async for chunk in answer.aiter_bytes():
            if not is_wanted():
                raise revoked()
            yield chunk
    finally:
        await answer.aclose()
