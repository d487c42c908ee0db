"""The answers of the tools: text for the model, pictures, links to files, and the same in a fixed structure. Pure."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence

from mcp_types import CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent
from pydantic import BaseModel

from agent_tools.limits import MIB
from agent_tools.mcp.activity import Activity, CodeActivity, CommandActivity
from agent_tools.mcp.names import uri_of
from agent_tools.mcp.shapes import File, Ran
from agent_tools.results.blocks import block, text_and_pictures
from agent_tools.results.execution import Changes, Execution
from agent_tools.results.outputs import Died, FileChange, Picture, Text, TimedOut, pictures_of
from agent_tools.text import fence, fold_lines, one_line

# Of one answer.
MAX_IMAGES = 8
MAX_IMAGE_BYTES = 8 * MIB  # of all pictures together
MAX_LINKS = 50  # to new and changed files

_ON = "It is still running: call `wait` with this container for the rest."


def told(activity: Activity, *, whole: bool = False) -> CallToolResult:
    """Return the new output of an activity, or, with `whole`, all of its output."""
    match activity:
        case CodeActivity():
            return _code(activity, whole=whole)
        case CommandActivity():
            return _command(activity, whole=whole)
    raise AssertionError(activity)


def failed(message: str) -> CallToolResult:
    """Return the answer to a failed call: what happened, and what to do."""
    return CallToolResult(content=[TextContent(text=message)], is_error=True)


def said(text: str, structure: BaseModel, *others: ContentBlock) -> CallToolResult:
    """Return an answer of a text, its structured content, and other content."""
    return CallToolResult(content=[TextContent(text=text), *others], structured_content=structure.model_dump())


def file_of(container: str, path: str, size: int) -> File:
    """Return a file as answers have it."""
    return File(path=path, uri=uri_of(container, path), size=size)


def link_to(file: File) -> ResourceLink:
    """Return the link to a file."""
    return ResourceLink(name=file.path, uri=file.uri, size=file.size, mime_type=mime_of(file.path))


def mime_of(path: str) -> str:
    """Return the MIME type that a file's name stands for."""
    return mimetypes.guess_type(path, strict=False)[0] or "application/octet-stream"


def _code(run: CodeActivity, *, whole: bool) -> CallToolResult:
    is_over = run.is_over  # before the outputs are read: then these are all
    outputs, execution = (run.execution.outputs, run.execution) if whole and run.execution else run.take_new()
    end = execution if is_over else None
    new = Execution(outputs, changed=end.changed if end else Changes())
    error = (end or new).error  # an earlier answer may have had its output
    files = files_of(run.place.container, new.changes)
    blocks: list[ContentBlock] = [TextContent(text=_head(run, is_over=is_over) + run.note)]
    if end or outputs:
        blocks = _joined(blocks, text_and_pictures(outputs, (), pictures_of, "inline"))
    if files or not new.changes_complete:
        blocks.append(TextContent(text=_listing(files, new.changed)))
    ran = Ran(
        container=run.place.container,
        status="done" if is_over else "running",
        ok=end.ok if end else None,
        stdout=new.stdout,
        stderr=new.stderr,
        result=new.result.text if new.result else None,
        error=error.text if error else None,
        notes=list(new.notes),
        state_lost=_is_lost(error),
        files=files,
        files_complete=new.changes_complete,
        figures=len(new.pictures),
        duration=round(run.seconds, 3),
    )
    run.note = ""
    return CallToolResult(
        content=[*blocks, *map(link_to, files)], structured_content=ran.model_dump(), is_error=ran.ok is False
    )


def _command(run: CommandActivity, *, whole: bool) -> CallToolResult:
    is_over = run.is_over
    stdout, stderr, result = (run.texts["stdout"], run.texts["stderr"], run.result) if whole else run.take_new()
    result = result if is_over else None
    ran = Ran(
        container=run.place.container,
        status="done" if is_over else "running",
        ok=result.ok if result else None,
        stdout=stdout,
        stderr=stderr,
        error=(result.reason or f"exit code {result.exit_code}") if result and not result.ok else None,
        exit_code=result.exit_code if result else None,
        duration=round(run.seconds, 3),
    )
    parts = [_head(run, is_over=is_over) + run.note]
    parts += [block(name, fold_lines(text)) for name, text in (("stdout", stdout), ("stderr", stderr)) if text.strip()]
    if result:
        parts.append("timed out" if result.timed_out else f"exit code {result.exit_code}")
    run.note = ""
    text = TextContent(text="\n\n".join(part.rstrip() for part in parts))
    return CallToolResult(content=[text], structured_content=ran.model_dump(), is_error=ran.ok is False)


def _head(run: Activity, *, is_over: bool) -> str:
    """Return the first lines of an answer: the handle, without which no later call finds the container."""
    if is_over:
        return f"container: {run.place.container}\n"
    at = f" ({run.stage})" if run.stage else ""
    return f"container: {run.place.container}\nstatus: running for {run.seconds:.0f} s{at}. {_ON}\n"


def _joined(blocks: list[ContentBlock], parts: Sequence[Text | Picture]) -> list[ContentBlock]:
    """Append text and pictures; a note stands for each picture beyond the limits."""
    left, room = MAX_IMAGES, MAX_IMAGE_BYTES
    for part in parts:
        if isinstance(part, Picture) and left and len(part.data) <= room:
            left, room = left - 1, room - len(part.data)
            blocks.append(ImageContent(data=base64.b64encode(part.data).decode(), mime_type=part.mime))
            continue
        text = part.text if isinstance(part, Text) else _unseen(part)
        if isinstance(last := blocks[-1], TextContent):
            blocks[-1] = TextContent(text=f"{last.text}\n{text}")
        else:
            blocks.append(TextContent(text=text))
    return blocks


def _unseen(picture: Picture) -> str:
    return f"[a figure of {len(picture.data):,} bytes is not shown: save it with plt.savefig to have it as a file]"


def files_of(container: str, changes: Sequence[FileChange]) -> list[File]:
    """Return new and changed files as answers have them."""
    return [file_of(container, each.name, each.size) for each in changes[:MAX_LINKS]]


def _listing(files: Sequence[File], changed: Changes) -> str:
    lines = [f"{one_line(each.path)} ({each.size:,} bytes)" for each in files]
    more = [f"and {others:,} more"] if (others := len(changed.files) - len(files)) > 0 else []
    more += filter(None, [changed.note])
    return f"files written:\n\n{fence(chr(10).join(lines + more))}"


def _is_lost(error: object) -> bool:
    match error:
        case TimedOut():
            return not (error.state_kept or error.variables.kept)
        case Died():
            return not error.variables.kept
        case _:
            return False
