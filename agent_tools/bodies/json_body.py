"""JSON of clients: bounded in bytes, parts and levels before it is parsed, and large JSON only in threads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from anyio.lowlevel import RunVar
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_tools.containers.sandbox_queue import SandboxQueue
from agent_tools.json_parts import has_more_parts
from agent_tools.limits import KIB

MAX_PARTS = 200_000  # commas and opening brackets outside texts; each costs up to 250 bytes once parsed
MAX_ESCAPES = 6_000_000  # backslashes; each takes about 25 ns to parse, during which no other thread runs
MAX_LEVELS = 100  # of arrays and objects within each other
SMALL = 16 * KIB  # bytes of JSON; more is neither parsed nor written in the event loop
LARGE = 256 * KIB  # bytes of JSON; more waits for one of a few places
AT_ONCE = 2  # large pieces of JSON that are read or written at once
T = TypeVar("T")


class BodyRefused(HTTPException):
    """A body that is too large, or is not what its route reads; `code` names the reason, `param` the field."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(status, message)
        self.code = code
        self.param = param


async def body_of(request: Request, most: int) -> bytearray:
    """Return the bytes of a body.

    Raises:
        BodyRefused: 413, there are more than `most`.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise BodyRefused(413, f"The request is larger than {most:,} bytes.", "request_too_large")
    return body


async def json_of(request: Request, most: int, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the JSON of a body, which is an empty object if there is no body.

    Raises:
        BodyRefused: as for `body_of` and `parsed`.
    """
    return await read_json(await body_of(request, most), read)


async def read_json(body: bytes | bytearray, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the JSON of a body that has come. Errors as for `parsed`."""
    return await sized(len(body), lambda: read(parsed(body)))


def parsed(body: bytes | bytearray) -> Any:
    """Parse a body.

    Raises:
        BodyRefused: 400, it is not JSON, or too deep; 413, it has too many parts.
    """
    check_parts(body)
    try:
        value = json.loads(body or b"{}", parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise BodyRefused(400, "We could not parse the JSON body of your request.") from None
    if body.count(b"[") + body.count(b"{") > MAX_LEVELS and _is_deeper(value, MAX_LEVELS):
        message = f"The JSON of the request has arrays and objects in more than {MAX_LEVELS} levels."
        raise BodyRefused(400, message)
    return value


def parsed_text(text: str) -> Any:
    """Parse JSON within a text. Errors as for `parsed`."""
    return parsed(text.encode("utf-8", "surrogatepass"))


def check_parts(body: bytes | bytearray, most: int = MAX_PARTS) -> None:
    """Check that parsing a body costs little memory, and does not stop other threads for long.

    Raises:
        BodyRefused: 413, it has more than `most` parts, or too many escapes.
    """
    if len(body) > MAX_ESCAPES and body.count(b"\\") > MAX_ESCAPES:
        message = f"The JSON of the request has more than {MAX_ESCAPES:,} backslashes."
        raise BodyRefused(413, f"{message} Send large data as a file (POST /v1/files).", "too_many_escapes")
    if has_more_parts(body, most, beside_texts=b"\0" not in body):  # UTF-8, where quotes and escapes are bytes
        message = f"The JSON of the request has more than {most:,} commas and opening brackets."
        raise BodyRefused(413, f"{message} Send large data as a file (POST /v1/files).", "too_many_parts")


def _finite(number: str) -> float:
    """Return a number; raise ValueError for a number outside JSON, such as NaN or 1e999."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number:.20} is no finite number")
    return value


def _is_deeper(value: Any, most: int) -> bool:
    """Return whether arrays and objects are nested in more than `most` levels."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list)))
        level = [each for values in inner for each in values if isinstance(each, (dict, list))]
        if not level:
            return False
    return True


async def sized(size: int, work: Callable[..., T], *args: Any) -> T:
    """Do work on JSON of a size in bytes; in a thread unless it is small."""
    return work(*args) if size <= SMALL else await in_thread(size, work, *args)


async def written(value: Any, write: Callable[[Any], T]) -> T:
    """Return what `write` makes of a value as JSON; in a thread unless it is small."""
    return await sized(size_of(value), write, value)


def size_of(value: Any, most: float = LARGE) -> int:
    """Return about how many bytes the JSON of a value has; counting ends beyond `most`."""
    size, left = 0, [value]
    while left and size <= most:
        each = left.pop()
        size += len(each) if isinstance(each, (str, bytes)) else 4
        if isinstance(each, dict):
            left += each
            left += each.values()
        elif isinstance(each, (list, tuple)):
            left += each
    return size


async def in_thread(size: int, work: Callable[..., T], *args: Any) -> T:
    """Do work on JSON, or on another body, of a size in bytes in a thread; a large one waits for one of `places`."""
    if size <= LARGE:
        return await run_in_threadpool(work, *args)
    queue = places()
    ticket = queue.enter(body_owner.get())
    await queue.wait(ticket, math.inf)
    try:
        return await run_in_threadpool(work, *args)
    finally:
        queue.leave(ticket)


def places() -> SandboxQueue:
    """Return the places for work on large JSON in the running event loop, which limit its memory."""
    found = _places.get(None)
    if found is None:
        _places.set(found := SandboxQueue(AT_ONCE, AT_ONCE))
    return found


body_owner: ContextVar[str] = ContextVar("body_owner", default="")
"""The owner of the request that is served: owners take turns at the places. Set by who finds the owner."""
_places: RunVar[SandboxQueue | None] = RunVar("places")


def at_most(most: int) -> BeforeValidator:
    """Return the bound of a list's or object's length, which is checked before its items.

    Checked after them, each invalid item would leave an error of a kilobyte.
    """
    return BeforeValidator(partial(_counted, most))


def _counted(most: int, given: Any) -> Any:
    if isinstance(given, (list, dict)) and len(given) > most:
        raise PydanticCustomError("too_long", f"At most {most:,} items are accepted, but there are {len(given):,}.")
    return given
