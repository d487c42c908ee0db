"""The `outputs` and `status` of a code_interpreter_call, from what its code did. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Union

from agent_tools.agents.steps import CallDone
from agent_tools.browser.outputs import ending_of, figure_of, live_outputs
from agent_tools.errors import ToolServiceError
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject
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

ImageUrl = Callable[[Picture], Union[str, None]]
"""Returns the URL at which a client can see a picture; None if it is too large for the response."""


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
                images = [_image(picture, image_url) for picture in execution.pictures_in(output)]
                outputs += _rich(output, images, details.figure(output.data) if details else {})
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


def _rich(output: Result | Display, images: list[JsonObject], details: JsonObject) -> list[JsonObject]:
    if images:
        first, *others = images
        return [{**first, **details}, *others]
    return [_logs(output.text, **details)] if output.text or details else []


def _image(picture: Picture, image_url: ImageUrl) -> JsonObject:
    if (url := image_url(picture)) is None:
        return _logs(f"[a picture of {len(picture.data):,} bytes is left out: the response would become too large]")
    return {"type": "image", "url": url}


def _logs(text: str, **details: Any) -> JsonObject:
    return {"type": "logs", "logs": text, **details}
