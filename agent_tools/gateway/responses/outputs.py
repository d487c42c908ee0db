"""The `outputs` and `status` of a code_interpreter_call, from what its code did. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_tools.agents.steps import CallDone
from agent_tools.errors import ToolServiceError
from agent_tools.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    Notice,
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


@dataclass(frozen=True)
class Logs:
    """Text that code printed, returned or raised."""

    logs: str

    @property
    def json(self) -> dict[str, str]:
        """The output in a response."""
        return {"type": "logs", "logs": self.logs}


@dataclass(frozen=True)
class Image:
    """A picture that code drew."""

    url: str

    @property
    def json(self) -> dict[str, str]:
        """The output in a response."""
        return {"type": "image", "url": self.url}


def outputs_of(done: CallDone, image_url: ImageUrl) -> list[Logs | Image]:
    """Return logs and images in the order they came; printed text that belongs together is one log."""
    if done.execution is None:
        return [Logs(done.text)]
    return _outputs(done.execution, image_url)


def status_of(done: CallDone) -> str:
    """Return `completed` if the code ran or raised, `failed` if it could not run, `incomplete` if it was not tried."""
    if isinstance(done.failure, ToolServiceError) and done.failure.code == "NotCalled":
        return "incomplete"
    if done.execution is None or isinstance(done.execution.error, (TimedOut, Died)):
        return "failed"
    return "completed"


def _outputs(execution: Execution, image_url: ImageUrl) -> list[Logs | Image]:
    outputs: list[Logs | Image] = []
    printed: list[str] = []

    def end_print() -> None:
        if text := fold_lines("".join(printed)):
            outputs.append(Logs(text))
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
            case Error() | TimedOut() | Died() | Restarted() | Omitted() | Notice():
                end_print()
                outputs.append(Logs(output.text))
            case Cleared():
                pass
    end_print()
    return outputs


def _rich(output: Result | Display, urls: list[str]) -> list[Logs | Image]:
    if urls:
        return [Image(url) for url in urls]
    return [Logs(output.text)] if output.text else []
