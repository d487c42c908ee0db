"""The messages of the protocol: parameters of methods, paths as `file:` URIs, errors.

Fields that are not known are ignored, since clients of later versions send more; methods that are not known are errors.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    create_model,
)
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from agent_tools.bodies.json_body import at_most
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.limits import KIB

INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, FAILED, NOT_FOUND = -32600, -32601, -32602, -32603, -32004
ATTACHED = -32010  # a client tries again, since its lost connection may not be noticed yet
CAMEL = ConfigDict(alias_generator=to_camel)
_PIECE = 768 * KIB  # bytes, or characters of base64, that are read or written while no other thread runs
_SAFE = "/!$&'()*+,-.:;=@_~"  # in the path of a URI


class RpcError(AgentToolsError):
    """An error that the client gets."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message, **({"data": data} if data else {})}


def error_of(exc: Exception) -> RpcError | None:
    """Return the error of the protocol for a failed request; None for a defect of ours."""
    match exc:
        case RpcError():
            return exc
        case HTTPException():
            return RpcError(INVALID_REQUEST, str(exc.detail))
        case InvalidParams():
            return RpcError(INVALID_PARAMS, exc.message)
        case AgentToolsError():
            return RpcError(FAILED, getattr(exc, "message", "") or str(exc))
        case OSError():
            code = NOT_FOUND if isinstance(exc, FileNotFoundError) else FAILED
            return RpcError(code, f"{exc.strerror or exc} (os error {exc.errno or 0})")
    return None


def path_of(uri: str) -> str:
    """Return the path of a `file:` URI; bytes that are not UTF-8 become what `os.fsdecode` makes of them.

    Raises:
        ValueError: it is none of this machine.
    """
    rest = uri[7:] if uri[:7].lower() == "file://" else ""
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost") or "?" in path or "#" in path:
        raise ValueError("give an absolute path as a URI, such as file:///workspace/a.txt")
    return os.fsdecode(unquote_to_bytes(f"/{path}"))


def uri_of(path: str) -> str:
    """Return a path as a URI."""
    return "file://" + quote_from_bytes(os.fsencode(path), _SAFE)


def _decoded(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    pieces = [given[start : start + _PIECE] for start in range(0, len(given), _PIECE)]
    if any("=" in piece for piece in pieces[:-1]):
        raise ValueError("this is no base64")
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)


Path = Annotated[str, Field(max_length=32_768), AfterValidator(path_of)]
Name = Annotated[str, Field(max_length=256)]
Bytes = Annotated[bytes, BeforeValidator(_decoded)]
Number = Annotated[int, Field(ge=0, le=2**63)]
Texts = Annotated[dict[str, str], at_most(1_000)]


class RpcRequest(BaseModel):
    """The envelope of a request; a notification has no `id`."""

    method: Name
    id: StrictInt | Name | None = None
    params: Annotated[dict[str, Any], BeforeValidator(lambda given: {} if given is None else given)] = {}


def parameters(function: Callable[..., Any], skipped: int) -> type[BaseModel]:
    """Return the model of a method's parameters: those of a function, after the first ones."""
    hints, fields = get_type_hints(function, include_extras=True), dict[str, Any]()
    for name, each in list(inspect.signature(function).parameters.items())[skipped:]:
        fields[name] = (hints[name], ... if each.default is each.empty else each.default)
    return create_model(function.__name__, __config__=CAMEL, **fields)


def dumped(message: Any) -> str:
    """Return a message, or a part of it, as JSON; bytes are base64."""
    return json.dumps(message, separators=(",", ":"), default=_encoded)


def _encoded(data: bytes) -> str:
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    return "".join(base64.b64encode(piece).decode() for piece in pieces)


def read(model: type[BaseModel], given: object) -> Any:
    """Return what a message holds.

    Raises:
        RpcError: it is not usable.
    """
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where, why = ".".join(map(str, first["loc"])) or "message", first["msg"].removeprefix("Value error, ")
        raise RpcError(INVALID_PARAMS, f"{where[:100]}: {why[:300]}") from None
