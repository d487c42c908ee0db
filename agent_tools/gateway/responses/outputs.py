"""What code did, as the `outputs` and `status` of a code_interpreter_call. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_tools.agents.steps import CallDone
from agent_tools.errors import ToolServiceError
from agent_tools.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    Omitted,
    Picture,
    Restarted,
    Result,
    Stream,
    TimedOut,
)
from agent_tools.text import fold_lines

ImageUrl = Callable[[Picture], str]
"""Returns the URL at which a client can see a picture."""


def outputs_of(done: CallDone, image_url: ImageUrl) -> list[dict[str, Any]]:
    """Logs and images in the order they came; printed text that belongs together is one log."""
    if done.execution is None:
        return [{"type": "logs", "logs": done.text}]
    return _outputs(done.execution, image_url)


def status_of(done: CallDone) -> str:
    """`completed` if the code ran, also if it raised; `failed` if it could not; `incomplete` if it was not tried."""
    if isinstance(done.failure, ToolServiceError) and done.failure.code == "NotCalled":
        return "incomplete"
    if done.execution is None or isinstance(done.execution.error, (TimedOut, Died)):
        return "failed"
    return "completed"


def _outputs(execution: Execution, image_url: ImageUrl) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    printed: list[str] = []

    def end_print() -> None:
        if text := fold_lines("".join(printed)):
            outputs.append({"type": "logs", "logs": text})
        printed.clear()

    for output in execution.outputs:
        match output:
            case Stream(_, text):
                printed.append(text)
            case Omitted() if printed:
                printed.append(f"\n{output.text}\n")
            case Result() | Display():
                end_print()
                outputs += _rich(output, [image_url(picture) for picture in execution.pictures_in(output)])
            case Error() | TimedOut() | Died() | Restarted() | Omitted():
                end_print()
                outputs.append({"type": "logs", "logs": output.text})
            case Cleared():
                pass
    end_print()
    return outputs


def _rich(output: Result | Display, urls: list[str]) -> list[dict[str, Any]]:
    if urls:
        return [{"type": "image", "url": url} for url in urls]
    return [{"type": "logs", "logs": output.text}] if output.text else []
