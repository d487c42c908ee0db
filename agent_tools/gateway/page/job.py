"""One piece of code from the page as a job: run in a container, with its outputs as events while they come."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from agent_tools.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    Output,
    Result,
    Stream,
    TimedOut,
    pictures_of,
)
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.jobs import Job
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.hold import Hold
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.models.base import JsonObject

MAX_TITLE = 200  # characters


class TrialJob(Job):
    """Code that is tried on the page; made in the event loop."""

    def __init__(self, services: Services, container_id: str, code: str) -> None:
        super().__init__(EventLog(services.config.max_response_bytes))
        self.container_id = container_id
        self._tool = ContainerTool(Hold(services.containers, container_id))
        self._metrics = services.metrics
        self._code = code

    def events(self) -> Generator[JsonObject, None, None]:
        """Run the code and yield what it does."""
        yield {"kind": "started", "container": self.container_id}
        outputs = self._tool.stream({"code": self._code}, cancelled=self.cancel)
        with self.cancel.ending(lambda: self._tool.cancel(self.cancel)):
            while True:
                try:
                    output = next(outputs)
                except StopIteration as end:
                    self._metrics.ended(end.value)
                    if note := end.value.changed.note:
                        yield {"kind": "note", "text": f"files written: {note}"}
                    yield _done(end.value, "stopped" if self.cancel.is_set() else _ending(end.value))
                    return
                yield from shown(output)

    def failed(self, failure: ApiError) -> Iterator[JsonObject]:
        """Yield why the code was not run."""
        yield {"kind": "error", "text": f"The code was not run: {failure.message}"}
        yield _done(Execution(), "refused")

    def close(self) -> None:
        """Let go of the container."""
        self._tool.hold.close()


def shown(output: Output) -> Iterator[JsonObject]:
    """Yield an output as the page shows it."""
    match output:
        case Stream(name, text):
            yield {"kind": name, "text": text}
        case Result() | Display():
            pictures = pictures_of(output)
            for picture in pictures:
                yield {"kind": "image", "url": picture.data_url}
            if output.text and not pictures:
                yield {"kind": "result", "text": output.text}
        case Cleared(wait):
            yield {"kind": "cleared", "wait": wait}
        case Error(name, value):
            yield {"kind": "error", "title": f"{name}: {value}".rstrip(": ")[:MAX_TITLE], "text": output.text}
        case TimedOut():
            yield {"kind": "error", "title": "Time limit reached", "text": output.text}
        case Died():
            yield {"kind": "error", "title": "The kernel died", "text": output.text}
        case _:
            yield {"kind": "note", "text": output.text}


def _ending(execution: Execution) -> str:
    return "done" if execution.ok else "failed"


def _done(execution: Execution, ending: str) -> JsonObject:
    files = [{"name": each.name, "size": each.size} for each in execution.changes]
    return {"kind": "done", "ending": ending, "seconds": execution.duration, "files": files}
