"""The messages of the protocol: parameters of methods, paths as `file:` URIs, errors.

Fields that are not known are ignored, since clients of later versions send more; methods that are not known are errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    ValidationInfo,
    create_model,
)
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from agent_tools.bodies.base64_text import encoded
from agent_tools.bodies.json_body import at_most
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.wires.paths import Home
from agent_tools.wires.routing import fields_of

INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, FAILED, NOT_FOUND = -32600, -32601, -32602, -32603, -32004
ATTACHED = -32010  # a client tries again, since its lost connection may not be noticed yet
CAMEL = ConfigDict(alias_generator=to_camel)
_SAFE = "/!$&'()*+,-.:;=@_~"  # in the path of a URI


class RpcError(AgentToolsError):
    """An error that the client gets."""

    def __init__(self, message: str, code: int = INVALID_REQUEST, **data: Any) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message, **({"data": data} if data else {})}


def error_of(exc: Exception) -> RpcError | None:
    """Return the error of the protocol for a failed request; None for a defect of ours."""
    match exc:
        case RpcError():
            return exc
        case HTTPException():
            return RpcError(str(exc.detail))
        case InvalidParams():
            return RpcError(exc.message, INVALID_PARAMS)
        case AgentToolsError():
            return RpcError(getattr(exc, "message", "") or str(exc), FAILED)
        case OSError():
            code = NOT_FOUND if isinstance(exc, FileNotFoundError) else FAILED
            return RpcError(f"{exc.strerror or exc} (os error {exc.errno or 0})", code)
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


def _taken(uri: str, info: ValidationInfo[Home]) -> str:
    return info.context.taken(path_of(uri))


Path = Annotated[str, Field(max_length=32_768), AfterValidator(_taken)]
"""A URI, which becomes a path as a sandbox takes it."""
Name = Annotated[str, Field(max_length=256)]
Number = Annotated[int, Field(ge=0, le=2**63)]
Texts = Annotated[dict[str, str], at_most(1_000)]


class RpcRequest(BaseModel):
    """The envelope of a request; a notification has no `id`."""

    method: Name
    id: StrictInt | Name | None = None
    params: dict[str, Any] | None = None


def parameters(function: Callable[..., Any], skipped: int, **more: Any) -> type[BaseModel]:
    """Return the model of a method's parameters: those of a function, after the first ones, and more."""
    return create_model(function.__name__, __config__=CAMEL, **fields_of(function, skipped), **more)


def dumped(message: Any) -> str:
    """Return a message as JSON; bytes are base64."""
    return json.dumps(message, separators=(",", ":"), default=encoded)


def read(model: type[BaseModel], given: object, home: Home) -> Any:
    """Return what a message holds.

    Raises:
        RpcError: it is not usable.
        HTTPException: as for `Home.resolved`.
    """
    try:
        return model.model_validate(given, context=home)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where, why = ".".join(map(str, first["loc"])) or "message", first["msg"].removeprefix("Value error, ")
        raise RpcError(f"{where[:100]}: {why[:300]}", INVALID_PARAMS) from None
