"""Code from the page as a job: it runs in a container, and its outputs are events."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from agent_tools.browser.outputs import live_outputs
from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.jobs import Job
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.models.base import JsonObject
from agent_tools.results.execution import Execution


class TrialJob(Job):
    """A job that runs code of the page. Made in the event loop."""

    def __init__(self, services: Services, container_id: str, code: str) -> None:
        super().__init__(EventLog(services.config.max_response_bytes))
        self.container_id = container_id
        self._tool = ContainerTool(ContainerLease(services.containers, container_id))
        self._metrics = services.metrics
        self._code = code

    def events(self) -> Generator[JsonObject, None, None]:
        """Run the code and yield its outputs as events."""
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
                yield from live_outputs(output)

    def failed(self, failure: ApiError) -> Iterator[JsonObject]:
        """Yield why the code was not run."""
        yield {"kind": "error", "text": f"The code was not run: {failure.message}"}
        yield _done(Execution(), "refused")

    def close(self) -> None:
        """Release the container."""
        self._tool.lease.close()


def _ending(execution: Execution) -> str:
    return "done" if execution.ok else "failed"


def _done(execution: Execution, ending: str) -> JsonObject:
    files = [{"name": each.name, "size": each.size} for each in execution.changes]
    return {"kind": "done", "ending": ending, "seconds": execution.duration, "files": files}
