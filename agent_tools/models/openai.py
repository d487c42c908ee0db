"""Models on servers that speak OpenAI's chat completions, through the `openai` client: the only file to import it."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from agent_tools.errors import ModelError
from agent_tools.extras import pip_install
from agent_tools.models.base import Conversation, FunctionDefinition, Json, Options
from agent_tools.models.chunks import ChunkReader
from agent_tools.models.dialect.lesson import REFUSALS, lesson
from agent_tools.models.dialect.profile import UpstreamProfile
from agent_tools.models.dialect.prompted_tools import RESULT
from agent_tools.models.learning import Asking, Dialect, RequestRejected
from agent_tools.models.reply import Reply, Waiting, bind_to_reply
from agent_tools.models.reply_events import json_or_text
from agent_tools.models.reply_limits import MAX_REPLY_BYTES, Bounded
from agent_tools.models.server_errors import failure_name, redirect_target, short_name, words_of
from agent_tools.models.wire import wire_messages, wire_tools, with_server_fields
from agent_tools.settings import Endpoint

CONNECT_TIMEOUT = 10.0  # seconds
RAW_RESPONSE = "X-Stainless-Raw-Response"  # the client's own header: it returns the response itself
IDLE_TIMEOUT = 600.0  # seconds between two pieces of an answer, the first included: a long prompt takes its time
MAX_RETRIES = 2  # before the first byte

_NOT_SENT = frozenset(
    (
        *("max_retries", "request_timeout", "timeout", "max_input_tokens", "cache_dir", "use_raw_api"),
        *("fncall_prompt_type", "function_choice", "parallel_function_calls", "thought_in_content", "lang"),
        "reasoning_summary",
    )
)
"""Keys of Qwen-Agent's `generate_cfg` that are meant for the client, not for the server; and an option that only
responses have."""
_CLIENTS = ("extra_headers", "extra_query")
"""Keys of `generate_cfg` that are options of the client; in one reply's options, maybe a stranger's, they are not."""
_RETRY_AFTER = re.compile(r"[\w ,:.+-]{1,40}", re.ASCII)
_HINTS = {
    401: " Check the API key.",
    403: " Check the API key.",
    404: " Check the model's name and the base URL.",
    413: " The conversation is too long for it.",
    429: " It has had too many requests, or the account has no credit.",
}
_OF_OTHER_CAUSES = (401, 403, 408, 409, 413, 429)
"""Statuses of failures that another phrasing cannot avoid. Of all others the words decide, and not the status."""


class OpenAIModel:
    """A model on an OpenAI-compatible server. Threads may share one.

    Args:
        model: its name on the server.
        endpoint: base URL and key.
        generate_cfg: request fields for every reply, sent as they are, known or not (`top_k`, `enable_thinking`); None
            leaves a field out. Also `max_retries`, `extra_headers`, `extra_query`, and `timeout`, in seconds between
            two pieces of an answer.
        max_reply_bytes: the size of the largest reply that is read.
        profile: the dialect of the server. Fields that are not given are learned from its answers.
        waiting: around each wait for the server, in the thread that reads a reply.
        leaves_waiting: the caller handles `Retry-After`, unless results of calls would be lost by that.
        on_request: gets each of httpx's requests before it is sent, in the context of the caller.
    """

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        generate_cfg: Options | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        profile: UpstreamProfile | None = None,
        waiting: Waiting = nullcontext,
        leaves_waiting: bool = False,
        on_request: Callable[[Any], None] | None = None,
    ) -> None:
        self.model = model
        self._hooks = [bind_to_reply, on_request] if on_request else [bind_to_reply]
        self._leaves_waiting = leaves_waiting
        self._sending = threading.local()
        self.dialect = Dialect(profile or UpstreamProfile(), model)
        self.max_reply_bytes = max_reply_bytes
        self.endpoint = endpoint
        self.generate_cfg = dict(generate_cfg or {})
        self._lock = threading.Lock()
        self._client: Any = None
        self.waiting = waiting

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[FunctionDefinition] = (),
        options: Options | None = None,
    ) -> Reply:
        """Ask the model; see `Model.reply`. Any thread may close the reply, at any time."""
        own = {key: value for key, value in self.generate_cfg.items() if key not in _CLIENTS}
        fields = {**own, **(options or {})}
        more = fields.pop("extra_body", None) or {}
        request = {
            "stream_options": {"include_usage": True},
            **{key: value for key, value in fields.items() if key not in _NOT_SENT and value is not None},
            **more,
            "model": self.model,
            "messages": with_server_fields(wire_messages(messages), self.model),
            "stream": True,
        }
        if tools:
            request["tools"] = wire_tools(tools)
        else:
            request = {key: each for key, each in request.items() if key not in ("tool_choice", "parallel_tool_calls")}
        reader = ChunkReader(self.max_reply_bytes, self.dialect.profile.thinking, self.dialect.hear)
        asking = Asking(self.dialect, request, self._open)
        return Reply(asking.open, self.translated, reader, self.waiting, asking.open_again, asking.taken)

    def close(self) -> None:
        """Close idle connections. The next reply would open new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self, request: Json) -> Any:
        """Send the request; return the HTTP client's response, unread.

        Raises:
            RequestRejected: the server may want another request.
        """
        try:
            with self.sending(request, has_results=_has_results(request["messages"])):
                return self.posted("/chat/completions", request)
        except _openai().APIStatusError as exc:
            if exc.status_code in _OF_OTHER_CAUSES:
                raise
            raise RequestRejected(words_of(exc.body), exc) from exc

    def posted(self, path: str, request: Json) -> Any:
        """Send a request to a path below the base URL, repeated as the client does; return the response, unread.

        The client would walk through all messages and write them anew for each attempt. Its writer also takes four
        times as long as pydantic's for a long text, during which no other thread runs.
        """
        headers = {**(self.generate_cfg.get("extra_headers") or {}), RAW_RESPONSE: "true"}
        options = {"headers": headers, "params": self.generate_cfg.get("extra_query") or {}}
        streamed = {"stream": True, "stream_cls": _openai().Stream, "cast_to": object}
        content = sys.modules["pydantic_core"].to_json(request)  # the client has loaded it
        return self.connected().post(path, content=content, options=options, **streamed).http_response

    @contextlib.contextmanager
    def sending(self, request: Json, *, has_results: bool) -> Iterator[None]:
        """Enter around the sending of a request; `has_results` says whether the request has results of calls."""
        self._sending.may_wait = has_results or not self._leaves_waiting
        self._sending.teaches = lambda words: lesson(self.dialect.profile, request, words) is not None
        try:
            yield
        finally:
            self._sending.may_wait, self._sending.teaches = True, None

    def connected(self) -> Any:
        """Return the `openai` client, made at the first call."""
        openai = _openai()
        with self._lock:
            if self._client is None:
                idle = self.generate_cfg.get("timeout") or self.generate_cfg.get("request_timeout") or IDLE_TIMEOUT
                hooks = {
                    "request": self._hooks,
                    "response": [partial(_count, self.max_reply_bytes), partial(_limit_retries, self._sending)],
                }
                http = openai.DefaultHttpxClient(
                    event_hooks=hooks, follow_redirects=False
                )  # a key is sent nowhere else
                self._client = openai.OpenAI(
                    base_url=self.endpoint.base_url,
                    api_key=self.endpoint.api_key,
                    timeout=openai.Timeout(float(idle), connect=min(CONNECT_TIMEOUT, float(idle))),
                    max_retries=int(self.generate_cfg.get("max_retries", MAX_RETRIES)),
                    http_client=http,
                )
                weakref.finalize(self, http.close).atexit = False
            return self._client

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the client's exceptions into ours, and those of its HTTP library that some versions do not wrap.

        Their text stays out of the message, since it may quote the request.
        """
        openai = _openai()
        http = [sys.modules[name] for name in ("httpx2", "httpx") if name in sys.modules]
        late, broken = [each.TimeoutException for each in http], [each.HTTPError for each in http]
        host = urlsplit(self.endpoint.base_url).netloc.rpartition("@")[2]
        try:
            yield
        except ModelError as exc:
            exc.detail = self.endpoint.without_key(exc.detail)
            raise
        except openai.APIStatusError as exc:
            if target := redirect_target(exc.response):
                message = f"The model's server {host} redirects to {target}: set its base URL to the final address."
                raise ModelError(message) from exc
            status, words = exc.status_code, words_of(exc.body)
            names = (exc.code, exc.type)
            raise ModelError(
                f"The model's server {host} answered {status}.{_HINTS.get(status, '')}",
                status=status,
                code=failure_name(words, *names) if status in REFUSALS else short_name(*names),
                is_retryable=status in (408, 409, 429) or status >= 500,
                detail=self.endpoint.without_key(words),
                retry_after=_retry_after(exc.response.headers),
            ) from exc
        except (openai.APITimeoutError, *late) as exc:
            raise ModelError(f"The model's server {host} did not answer in time.", is_retryable=True) from exc
        except (openai.APIConnectionError, *broken) as exc:
            raise ModelError(f"The connection to the model's server {host} failed.", is_retryable=True) from exc
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ModelError(f"The model's server {host} sent an answer that is not a valid reply.") from exc
        except (openai.OpenAIError, TypeError, ValueError) as exc:
            raise ModelError(
                f"The request to the model's server {host} could not be made: {type(exc).__name__}."
            ) from exc


def _limit_retries(sending: threading.local, response: Any) -> None:
    """Make the client not wait for the server's `Retry-After`, and not repeat a request that has to be another one.

    A header says so, which the client reads. Servers that render a chat template answer its refusals with 500.
    """
    is_told_to_wait = "retry-after" in response.headers and not getattr(sending, "may_wait", True)
    teaches = getattr(sending, "teaches", None) if response.status_code >= 500 else None
    if is_told_to_wait or (teaches and teaches(words_of(json_or_text(response.read())))):
        response.headers["x-should-retry"] = "false"


def _has_results(messages: Sequence[Json]) -> bool:
    """Return whether messages end with results of calls, after which pictures of them may come."""
    newest = itertools.takewhile(lambda message: message.get("role") != "assistant", reversed(messages))
    return any(
        message.get("role") in ("tool", "function") or str(message.get("content")).startswith(RESULT)
        for message in newest
    )


def _count(limit: int, response: Any) -> None:
    """Count an answer's bytes at the source of all reading: errors and unfinished lines are counted, too."""
    arriving: Any = weakref.WeakMethod(response.iter_bytes)  # no cycle keeps the request after the last reference
    response.iter_bytes = lambda *args, **kwargs: Bounded(arriving()(*args, **kwargs), limit)


def _openai() -> Any:
    try:
        import openai  # an extra, which takes long to load
    except ImportError as exc:
        raise ModelError(f"Models need the package openai: {pip_install('agents')}") from exc
    return openai


def _retry_after(headers: Any) -> str:
    """Return the seconds, or the date, of the server's `Retry-After`; '' without one."""
    value = str(headers.get("retry-after") or "")
    return value if _RETRY_AFTER.fullmatch(value) else ""
