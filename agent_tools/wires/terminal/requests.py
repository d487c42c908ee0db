"""The queries and bodies of requests: what is read of them, and what a model is shown of them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.limits import MIB

MAX_BODY = 16 * MIB
Model = TypeVar("Model", bound=BaseModel)
Positive = Annotated[int, Field(ge=1, le=2**53)]
Wait = Annotated[float | None, Field(ge=0, le=240, description="Seconds to wait for the end, at most 240.")]
Tail = Annotated[Positive | None, Field(description="Return only the last lines, at most this number.")]
Kind = Literal["any", "file", "directory"]
Path = Annotated[str, Field(description="A path; a relative one counts from the working directory.")]
Folder = Annotated[str, Field(description="The folder to look in.")]


class FolderQuery(BaseModel):
    """A folder."""

    directory: Annotated[str, Field(description="The folder to list.")] = "."


class PathQuery(BaseModel):
    """A path."""

    path: Path


class ReadQuery(PathQuery):
    """A file, and some of its lines."""

    start_line: Annotated[Positive | None, Field(description="The first line, from 1.")] = None
    end_line: Annotated[Positive | None, Field(description="The last line, which is included.")] = None


class WriteBody(PathQuery):
    """A file's new text."""

    content: Annotated[str, Field(description="The whole text of the file.")]


class Replacement(BaseModel):
    """One replacement in a text."""

    target: Annotated[str, Field(min_length=1, description="The exact text to find.")]
    replacement: Annotated[str, Field(description="The text to put in its place.")]
    start_line: Annotated[Positive | None, Field(description="Look from this line on.")] = None
    end_line: Annotated[Positive | None, Field(description="Look up to this line.")] = None
    allow_multiple: Annotated[bool, Field(description="Replace all places; otherwise there must be one.")] = False


class ReplaceBody(PathQuery):
    """Replacements in a file."""

    replacements: Annotated[list[Replacement], Field(max_length=100, description="Replacements, in this order.")]


class MoveBody(BaseModel):
    """A move."""

    source: str
    destination: str


class ArchiveBody(BaseModel):
    """Files and folders of an archive."""

    paths: Annotated[list[str], Field(max_length=1_000)]


class GrepQuery(BaseModel):
    """A search in lines."""

    query: Annotated[str, Field(max_length=10_000, description="A regular expression of Python, or a text.")]
    path: Folder = "."
    regex: Annotated[bool, Field(description="The query is a regular expression.")] = True
    case_insensitive: bool = False
    include: Annotated[list[str] | None, Field(description="Patterns of file names, such as *.py.")] = None
    match_per_line: Annotated[bool, Field(description="Return each line; otherwise only the files.")] = True
    max_results: Annotated[int, Field(ge=1, le=500)] = 50


class GlobQuery(BaseModel):
    """A search of names by a pattern."""

    pattern: Annotated[str, Field(max_length=1_000, description="A pattern, such as *.csv or data/*.json.")]
    path: Folder = "."
    exclude: Annotated[list[str] | None, Field(description="Patterns of what is left out.")] = None
    type: Kind = "any"
    max_results: Annotated[int, Field(ge=1, le=500)] = 50


class SearchQuery(BaseModel):
    """A search of names."""

    query: Annotated[str, Field(max_length=1_000)] = ""
    path: str = "."
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    type: Kind = "any"
    show_hidden: bool = False


class MatchesQuery(BaseModel):
    """A search of names and lines."""

    query: Annotated[str, Field(max_length=1_000)]
    path: str = "."
    show_hidden: bool = False
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 100


class CompareBody(BaseModel):
    """Two files."""

    original: str
    revised: str
    ignore_whitespace: bool = False


class WaitQuery(BaseModel):
    """A wait for a command."""

    wait: Wait = None
    tail: Tail = None


class StatusQuery(WaitQuery):
    """A wait for a command's further output."""

    offset: Annotated[int, Field(ge=0, le=2**53, description="Where to read on: `next_offset` of before.")] = 0


class ExecuteBody(BaseModel):
    """A command."""

    command: Annotated[str, Field(max_length=100_000, description="A command line for bash.")]
    cwd: Annotated[str | None, Field(description="The folder to start in.")] = None
    env: Annotated[dict[str, str] | None, Field(description="Further environment variables.")] = None


class InputBody(BaseModel):
    """Text to type."""

    input: Annotated[str, Field(max_length=100_000, description="The text to type; end a line with a newline.")]


class ForceQuery(BaseModel):
    """The way in which a command is ended."""

    force: Annotated[bool, Field(description="Kill at once, instead of asking the command to end.")] = False


class PythonBody(BaseModel):
    """Code."""

    code: Annotated[str, Field(max_length=1_000_000, description="Python, as a cell of a notebook.")]
    timeout: Annotated[float | None, Field(gt=0, le=240, description="Seconds it may run, at most 240.")] = None


class CellBody(BaseModel):
    """A cell of a notebook."""

    cell_index: int
    source: str | None = None


class PolicyBody(BaseModel):
    """A policy."""

    image: str = ""
    env: dict[str, str] | None = None
    cpu_limit: str = ""
    memory_limit: str = ""
    storage: str | dict[str, Any] | None = None
    idle_timeout_minutes: float | None = None


class Json(Response):
    """An answer of JSON, in ASCII: names of files may hold what is no UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return json.dumps(content, separators=(",", ":")).encode()


def query_of(request: Request, model: type[Model]) -> Model:
    """Read a query.

    Raises:
        HTTPException: 422, with what is wrong, as FastAPI has it.
    """
    given: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        values = [value for value in request.query_params.getlist(name) if value != "null"]
        if values:
            given[name] = values if "list" in str(field.annotation) else values[-1]
    return checked(model, given, "query")


async def body_of(request: Request, model: type[Model]) -> Model:
    """Read a body of JSON. Errors as for `query_of`; 413, it is too large."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY:
            raise HTTPException(413, f"The request is larger than {MAX_BODY:,} bytes.")
    try:
        given = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise unusable({"type": "json_invalid", "loc": ["body"], "msg": "JSON decode error"}) from None
    return checked(model, given, "body")


def unusable(*errors: dict[str, Any]) -> HTTPException:
    """Return the answer to a request that cannot be used: 422, with errors as FastAPI has them."""
    exc = HTTPException(422)
    exc.detail = cast("Any", list(errors))
    return exc


def checked(model: type[Model], given: object, where: str) -> Model:
    """Return a query or a body as a value. Errors as for `query_of`."""
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
        raise unusable(*({**each, "loc": [where, *each["loc"]]} for each in found[:10])) from None
