"""One call of a tool: its outputs while it runs, and an answer for the model, whatever becomes of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.code_stream import CodeReader
from agent_tools.agents.steps import Call, CallDone, CallOutput
from agent_tools.errors import ToolServiceError
from agent_tools.execution import Execution, Output
from agent_tools.messages import Content, ContentItem
from agent_tools.models.base import Conversation
from agent_tools.settings import Limits
from agent_tools.text import neutralise
from agent_tools.tools.base import BaseTool
from agent_tools.tools.params import code_of

MAX_FAILURE_CHARS = 1_000
"""Of what a failure says, so much is told to the model."""

_log = logging.getLogger(__name__)
_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/~])(?:/[\w.@+~-]+)+/([\w.@+~-]+)")


@runtime_checkable
class CodeTool(Protocol):
    """A tool that runs code and shows what it does; `CodeInterpreter` is one, and says what these mean."""

    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: Any = None,
    ) -> Generator[Output, None, Execution]:
        """Run code, yield its outputs, return the whole."""
        ...

    def markdown(self, execution: Execution) -> str:
        """The execution as the model is told of it."""
        ...

    def cancel(self, cancelled: Any) -> None:
        """End the stream that was given this event; called from another thread."""
        ...


def code_reader(tool: BaseTool | None) -> CodeReader | None:
    """Return what reads code from arguments as the tool itself does; None for a tool that runs no code."""
    if not isinstance(tool, CodeTool):
        return None
    return getattr(tool, "read_code", None) or partial(code_of, limits=Limits())


@dataclass(frozen=True)
class Surroundings:
    """What a tool gets besides its arguments. `timeout` is seconds of running code, None for the tool's own."""

    messages: Conversation
    files: Sequence[str]
    timeout: float | None
    stop: Cancel


def perform(call: Call, tool: BaseTool, given: Surroundings) -> Generator[CallOutput, None, CallDone]:
    """Do what a call asks; yields what running code yields, and returns the answer. A failing tool is an answer too."""
    try:
        if isinstance(tool, CodeTool):
            return (yield from _run_code(call, tool, given))
        files = {"files": list(given.files)} if tool.file_access else {}
        return CallDone(call, _content(tool.call(call.arguments, messages=given.messages, **files)))
    except Exception as exc:  # noqa: BLE001  (a user's tool may raise anything, and the model is to hear of it)
        _log.warning("the tool %s failed: %s", tool.name, type(exc).__name__)
        return CallDone(call, _sentence(tool.name, exc), failure=exc)


def refused(call: Call, why: str) -> CallDone:
    """The answer to a call that was not made."""
    return CallDone(call, f"The call was not made: {why}", failure=ToolServiceError(code="NotCalled", message=why))


def _run_code(call: Call, tool: CodeTool, given: Surroundings) -> Generator[CallOutput, None, CallDone]:
    outputs = tool.stream(call.arguments, given.files, given.timeout, given.stop)
    with given.stop.ending(lambda: tool.cancel(given.stop)), closing(outputs):
        while True:
            try:
                output = next(outputs)
            except StopIteration as end:
                ended = "\n\nThe turn was ended before the code was." if given.stop.is_set() else ""
                return CallDone(call, tool.markdown(_for_model(end.value)) + ended, execution=end.value)
            yield CallOutput(call.id, output)


def _for_model(execution: Execution) -> Execution:
    """The execution without the host's paths: figures and files by the names they have for the code."""
    saved = tuple(replace(picture, path=PurePath(picture.path).name) for picture in execution.saved)
    files = tuple(replace(file, source=_name(file.source)) for file in execution.files)
    return replace(execution, saved=saved, files=files)


def _name(source: str) -> str:
    return source if source.startswith(("http://", "https://")) else PurePath(source).name


def _content(answer: Any) -> Content:
    """What a tool answered, as content: text, or items, or JSON of anything else."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, (list, tuple)) and answer and all(isinstance(item, ContentItem) for item in answer):
        return tuple(answer)
    return json.dumps(answer, ensure_ascii=False, indent=4, default=str)


def _sentence(name: str, exc: Exception) -> str:
    """What went wrong, for the model: no traceback, and no more of a path on this machine than its last part."""
    words = exc.message if isinstance(exc, ToolServiceError) else f"{type(exc).__name__}: {exc}"
    words = _ABSOLUTE_PATH.sub(r"\1", neutralise(words)).strip()
    cut = f"{words[:MAX_FAILURE_CHARS]} ..." if len(words) > MAX_FAILURE_CHARS else words
    return f"The tool {name} failed: {cut}"
