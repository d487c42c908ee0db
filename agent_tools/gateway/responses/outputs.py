"""The `outputs` and `status` of a code_interpreter_call, from what its code did. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from agent_tools.agents.steps import CallDone
from agent_tools.browser.outputs import ending_of, figure_of, live_outputs
from agent_tools.errors import ToolServiceError
from agent_tools.limits import MIB
from agent_tools.models.base import Json, JsonObject
from agent_tools.results.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    MimeBundle,
    Notice,
    Omitted,
    Output,
    Picture,
    Restarted,
    Result,
    Stream,
    TimedOut,
)
from agent_tools.text import fold_lines

MAX_DETAILS = 4 * MIB  # of JSON, in one response
_EVENT = 200  # bytes of an event beside its output

ImageUrl = Callable[[Picture], str]
"""Returns the URL at which a client can see a picture."""


class Details:
    """Fields and events beside OpenAI's, for clients that ask for them: in all, at most `MAX_DETAILS` bytes."""

    def __init__(self) -> None:
        self._left = MAX_DETAILS

    def live(self, output: Output) -> Iterator[JsonObject]:
        """Yield an output of running code; a changed display is left out, since the item has it at the end."""
        if isinstance(output, Display) and output.is_update:
            return
        yield from filter(self._has_room, live_outputs(output))

    def figure(self, data: MimeBundle) -> JsonObject:
        """Return the field for a figure that can be drawn from data."""
        figure = figure_of(data)
        return {"figure": figure} if figure and self._has_room(figure) else {}

    def _has_room(self, value: JsonObject) -> bool:
        self._left -= len(json.dumps(value)) + _EVENT
        return self._left >= 0


def outputs_of(done: CallDone, image_url: ImageUrl, details: Details | None = None) -> list[JsonObject]:
    """Return logs and images in the order they came; printed text that belongs together is one log.

    With `details`, they have further fields.
    """
    if done.execution is None:
        return [_logs(done.text)]
    return _outputs(done.execution, image_url, details)


def status_of(done: CallDone) -> str:
    """Return `completed` if the code ran or raised, `failed` if it could not run, `incomplete` if it was not tried."""
    if isinstance(done.failure, ToolServiceError) and done.failure.code in ("NotCalled", "Cancelled"):
        return "incomplete"
    if done.execution is None or isinstance(done.execution.error, (TimedOut, Died)):
        return "failed"
    return "completed"


def _outputs(execution: Execution, image_url: ImageUrl, details: Details | None) -> list[JsonObject]:
    outputs: list[JsonObject] = []
    printed: list[str] = []

    def end_print() -> None:
        if text := fold_lines("".join(printed)):
            outputs.append(_logs(text))
        printed.clear()

    for output in execution.outputs:
        match output:
            case Stream(_, text):
                printed.append(text)
            case Omitted() if printed:
                printed.append(f"\n{output.text}\n")
            case Result() | Display():
                end_print()
                urls = [image_url(picture) for picture in execution.pictures_in(output)]
                outputs += _rich(output, urls, details.figure(output.data) if details else {})
            case Error() | TimedOut() | Died():
                end_print()
                outputs.append(_logs(output.text, **({"error": ending_of(output)} if details else {})))
            case Restarted() | Omitted() | Notice():
                end_print()
                outputs.append(_logs(output.text))
            case Cleared():
                pass
    end_print()
    return outputs


def _rich(output: Result | Display, urls: list[str], details: JsonObject) -> list[JsonObject]:
    if urls:
        first, *others = ({"type": "image", "url": url} for url in urls)
        return [{**first, **details}, *others]
    return [_logs(output.text, **details)] if output.text or details else []


def _logs(text: str, **details: Any) -> JsonObject:
    return {"type": "logs", "logs": text, **details}


# Links to files of the container in an answer's text, as citations.


MAX_LINKS = 500  # links in one text that are looked at
MAX_ENDS = 24  # ends of one link that are tried
_START = re.compile(r"(?:sandbox:)?/mnt/data/")
_NAME = re.compile(r"[^\r\n]{1,400}")
_END = re.compile(r"(?=[.,:;!?*_]*(?:[\s()<>\[\]\"'`|。，；：！？、（）【】「」《》“”]|$))")
"""The places at which a name may end. They may also lie inside a name, so the longest existing file is meant."""

FindFile = Callable[[str], "str | None"]
"""The id of the container's file of a name, if there is one."""


def citations(text: str, container_id: str, find: FindFile) -> Iterator[JsonObject]:
    """Yield an annotation for each link to a file that is there; its indexes are those of the link in the text."""
    place = 0
    for _ in range(MAX_LINKS):
        link = _START.search(text, place)
        if link is None:
            return
        place = link.end()
        for name in _names(text, place):
            found = _found(name, find)
            if found:
                place += len(name)
                yield {
                    "type": "container_file_citation",
                    "container_id": container_id,
                    "file_id": found[0],
                    "filename": found[1],
                    "start_index": link.start(),
                    "end_index": place,
                }
                break


def _found(name: str, find: FindFile) -> tuple[str, str] | None:
    """Return the id and the name without folders of the file that a link names, as it stands or encoded as in a URL."""
    for meant in dict.fromkeys((name, unquote(name))):
        if file_id := find(meant):
            return file_id, meant.rsplit("/", 1)[-1]
    return None


def _names(text: str, place: int) -> Iterator[str]:
    """Yield the possible names at a place, the longest first."""
    line = _NAME.match(text, place)
    if line is None:
        return
    ends = []
    for end in _END.finditer(line[0]):
        if end.start():
            ends.append(end.start())
        if len(ends) == MAX_ENDS:
            break
    for last in reversed(ends):
        yield line[0][:last]


# The log probabilities of a message's tokens, from the shape of chat completions to that of responses. Pure.
#
# A server's numbers are read as it gave them; what JSON cannot carry is LOWEST, the number that servers use for it.


LOWEST = -9999.0
MAX_ALTERNATIVES = 20  # for one token, as the API has it


def shown_logprobs(tokens: Iterable[Json], *, with_bytes: bool) -> list[JsonObject]:
    """Return tokens as an event has them, or `with_bytes`, as the finished text has them."""
    return [{**_token(each, with_bytes), "top_logprobs": _alternatives(each, with_bytes)} for each in tokens]


def _alternatives(token: Json, with_bytes: bool) -> list[JsonObject]:
    listed = token.get("top_logprobs")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [_token(each, with_bytes) for each in found[:MAX_ALTERNATIVES]]


def _token(token: Json, with_bytes: bool) -> JsonObject:
    text = str(token.get("token") or "").encode("utf-8", "replace").decode()
    shown: JsonObject = {"token": text, "logprob": _number(token.get("logprob"))}
    return {**shown, "bytes": _bytes(token.get("bytes"), text)} if with_bytes else shown


def _number(value: Any) -> float:
    return value if type(value) in (int, float) and math.isfinite(value) else LOWEST


def _bytes(given: Any, text: str) -> list[int]:
    if isinstance(given, list) and all(type(each) is int and 0 <= each < 256 for each in given):
        return given
    return list(text.encode())
