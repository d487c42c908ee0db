"""The arguments and the structured answers of the tools, from which their schemas are made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Container = Annotated[
    str,
    BeforeValidator(lambda given: "" if given is None else given),
    Field(description="The handle from an earlier answer, to go on with its variables and files."),
]
Seconds = Annotated[float, BeforeValidator(lambda given: 0 if given is None else given), Field(ge=0)]


class ToolInput(BaseModel):
    """Arguments of a tool."""

    model_config = ConfigDict(extra="forbid")


class RunPython(ToolInput):
    """Arguments of `run_python`."""

    code: str = Field(description="Python, as in a notebook cell: top-level await and magics work.")
    container: Container = ""
    timeout: Seconds = Field(default=0, description="Seconds that the code may run; 0 for the usual limit.")


class RunCommand(ToolInput):
    """Arguments of `run_command`."""

    command: str = Field(description="A command for bash. It runs beside the Python code, in the same files.")
    container: Container = ""
    timeout: Seconds = Field(default=0, description="Seconds that the command may run; 0 for the usual limit.")


class Wait(ToolInput):
    """Arguments of `wait`."""

    container: Container = ""
    seconds: Seconds = Field(default=0, description="Seconds to wait at most; 0 for as long as an answer may take.")


class PutFile(ToolInput):
    """Arguments of `put_file`."""

    path: str = Field(description="Where it goes in the working directory, e.g. 'data/a.csv'.")
    content: str = Field(description="The whole file.")
    encoding: Literal["utf-8", "base64"] = Field(default="utf-8", description="base64 for a file that is no text.")
    container: Container = ""


class GetFile(ToolInput):
    """Arguments of `get_file`."""

    path: str = Field(description="A file in the working directory.")
    container: Container = ""
    offset: int = Field(default=0, ge=0, description="Byte to begin with, for the rest of a long text.")


class InContainer(ToolInput):
    """Arguments of the tools that need nothing but a container."""

    container: Container = ""


class GetOutputs(ToolInput):
    """Arguments of `get_outputs`."""

    container: Container = ""
    code: str = Field(default="", description="The code or command that ran; without it, the newest run.")
    seconds: Seconds = Field(default=0, description="Seconds to wait for its end at most.")


class File(BaseModel):
    """A file in the working directory; its size is in bytes."""

    path: str
    uri: str
    size: int


class Ran(BaseModel):
    """The answer of `run_python` and `wait`."""

    container: str = Field(description="Give it to later calls, to go on with these variables and files.")
    status: Literal["done", "running"] = Field(description="running: call wait with this container for the rest.")
    ok: bool | None = Field(default=None, description="False: the code raised, ran out of time, or the kernel died.")
    stdout: str = ""
    stderr: str = ""
    result: str | None = Field(default=None, description="The value of the last expression.")
    error: str | None = None
    notes: list[str] = Field(default=[], description="What was repaired in the code, or left out, before it ran.")
    state_lost: bool = Field(default=False, description="True: the variables are gone.")
    exit_code: int | None = Field(default=None, description="Of a command.")
    files: list[File] = Field(default=[], description="New and changed files.")
    files_complete: bool = Field(default=True, description="False: not all files could be looked at for `files`.")
    figures: int = Field(default=0, description="Pictures that were drawn.")
    duration: float = Field(description="Seconds since it began.")


class Put(BaseModel):
    """The answer of `put_file`."""

    container: str
    file: File


class Got(BaseModel):
    """The answer of `get_file`."""

    container: str
    file: File
    mime_type: str
    text: str | None = Field(default=None, description="The content, if it is text.")
    next_offset: int | None = Field(default=None, description="Where the rest begins, if there is more.")


class GotOutputs(BaseModel):
    """The answer of `get_outputs`, which the page for answers reads."""

    container: str
    status: Literal["done", "running", "unknown"]
    outputs: list[dict[str, Any]] = []
    files: list[File] = []
    progress: str = ""
    base: str = Field(default="", description="Before the names of the files that figures need.")
    libraries: dict[str, tuple[str, ...]] = {}


class FileListing(BaseModel):
    """The answer of `list_files`."""

    container: str
    files: list[File]
    left_out: int = Field(default=0, description="Files that are not listed.")


class ContainerNote(BaseModel):
    """The answer of `restart` and `close`."""

    container: str
    message: str


def schema_of(shape: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a shape, as short as it can be: clients check every answer by it."""
    schema: dict[str, Any] = _short(shape.model_json_schema())
    schema.pop("description", None)
    return schema


def _short(part: Any) -> Any:
    """Leave out titles, which say nothing, and write a choice of two plain types as a list of types."""
    if isinstance(part, list):
        return [_short(each) for each in part]
    if not isinstance(part, dict):
        return part
    short = {name: _short(each) for name, each in part.items() if name != "title" or not isinstance(each, str)}
    choice = short.get("anyOf", [])
    if choice and all(list(each) == ["type"] for each in choice):
        del short["anyOf"]
        short["type"] = [each["type"] for each in choice]
    return short
