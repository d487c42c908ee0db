"""One piece of code from the page, run in a container, with its outputs as events while they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agent_tools.agents.cancel import Cancel
from agent_tools.errors import AgentToolsError
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
from agent_tools.gateway.containers.tool import ContainerTool
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.services import Services

MAX_TITLE = 200  # characters


class Trial:
    """Made in the event loop; `work` is for a thread."""

    def __init__(self, services: Services, container_id: str, code: str) -> None:
        self.container_id = container_id
        self.cancel = Cancel()
        self.is_stopped = False
        self.log = EventLog(services.config.max_response_bytes)
        self.on_end: Callable[[], None] = lambda: None
        self._tool = ContainerTool(services.containers, container_id)
        self._metrics = services.metrics
        self._code = code

    def work(self) -> None:
        """Run the code to its end, whatever happens."""
        try:
            for event in self._events():
                self.log.append(event)
        except AgentToolsError as exc:
            kind = getattr(exc, "code", None) or type(exc).__name__
            self.log.append({"kind": "error", "text": f"The code was not run: {kind}."})
            self.log.append(_done(Execution(), "refused"))
        finally:
            self._tool.close()
            self.on_end()
            self.log.close()

    def _events(self) -> Iterator[dict[str, Any]]:
        yield {"kind": "started", "container": self.container_id}
        outputs = self._tool.stream({"code": self._code}, cancelled=self.cancel)
        with self.cancel.ending(lambda: self._tool.cancel(self.cancel)):
            while True:
                try:
                    output = next(outputs)
                except StopIteration as end:
                    self._metrics.ended(end.value)
                    yield _done(end.value, "stopped" if self.cancel.is_set() else _ending(end.value))
                    return
                yield from shown(output)


def shown(output: Output) -> Iterator[dict[str, Any]]:
    """An output as the page shows it."""
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


def _done(execution: Execution, ending: str) -> dict[str, Any]:
    files = [{"name": each.name, "size": each.size} for each in execution.changes]
    return {"kind": "done", "ending": ending, "seconds": execution.duration, "files": files}
