"""One call of a tool: its outputs while it runs, an answer for the model, even if it fails, and what it drew."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import Call, CallCommand, CallDone, CallOutput
from agent_tools.agents.turn.code_stream import CodeReader
from agent_tools.errors import ToolServiceError
from agent_tools.messages import FIGURES, USER, Content, ContentItem, Message
from agent_tools.models.base import Conversation
from agent_tools.phrases import language_of
from agent_tools.results.execution import Execution
from agent_tools.text import neutralise
from agent_tools.tools.base import BaseTool
from agent_tools.tools.code_tool import CodeTool
from agent_tools.tools.command_tool import CommandTool

MAX_FAILURE_CHARS = 1_000  # characters of a failure's message for the model

_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/~])(?:/[\w.@+~-]+)+/([\w.@+~-]+)")
_PHRASES = {"en": "(The figures that the code drew.)", "zh": "（代码绘制的图。）"}


def code_reader(tool: BaseTool | None) -> CodeReader | None:
    """Return the function that reads code from arguments as the tool does; None for a tool that runs no code."""
    return tool.read_code if isinstance(tool, CodeTool) else None


@dataclass(frozen=True)
class CallContext:
    """The part of a turn that tools get. `timeout` is in seconds of running code; None means the tool's own."""

    messages: Conversation
    files: Sequence[str]
    timeout: float | None
    stop: Cancel


def perform(call: Call, tool: BaseTool, context: CallContext) -> Generator[CallOutput | CallCommand, None, CallDone]:
    """Make a call: yield the output of code or commands, and return the answer. A failure is an answer, too."""
    try:
        if isinstance(tool, CodeTool):
            return (yield from _run_code(call, tool, context))
        if isinstance(tool, CommandTool):
            return (yield from _run_commands(call, tool, context))
        files = {"files": list(context.files)} if tool.file_access else {}
        return CallDone(call, _content(tool.call(call.arguments, messages=context.messages, **files)))
    except Exception as exc:  # noqa: BLE001  (a user's tool may raise anything; the model gets the message)
        _log.warning("the tool %s failed: %s", tool.name, type(exc).__name__)
        return CallDone(call, _sentence(tool.name, exc), failure=exc)


def refused(call: Call, why: str) -> CallDone:
    """Return the answer to a call that was not made."""
    return CallDone(call, f"The call was not made: {why}", failure=ToolServiceError(code="NotCalled", message=why))


def _run_code(call: Call, tool: CodeTool, context: CallContext) -> Generator[CallOutput, None, CallDone]:
    if tool.read_code(call.arguments).strip() in ("", "null"):  # which would be reported as a success
        return refused(call, 'it has no code. Write the code as JSON: {"code": "print(1)"}.')
    outputs = tool.stream(call.arguments, context.files, context.timeout, context.stop)
    with context.stop.ending(lambda: tool.cancel(context.stop)), closing(outputs):
        while True:
            try:
                output = next(outputs)
            except StopIteration as end:
                ended = "\n\nThe turn was ended before the code was." if context.stop.is_set() else ""
                return CallDone(call, tool.markdown(_for_model(end.value)) + ended, execution=end.value)
            yield CallOutput(call.id, output)


def _run_commands(call: Call, tool: CommandTool, context: CallContext) -> Generator[CallCommand, None, CallDone]:
    running = tool.run(call.arguments, context.stop)
    with context.stop.ending(tool.cancel), closing(running):
        while True:
            try:
                news = next(running)
            except StopIteration as end:
                return CallDone(call, end.value)
            yield CallCommand(call.id, news)


def _for_model(execution: Execution) -> Execution:
    """Return the execution without paths of the host: figures and files have their names in the sandbox."""
    saved = tuple(replace(picture, path=PurePath(picture.path).name) for picture in execution.saved)
    files = tuple(replace(file, source=_name(file.source)) for file in execution.files)
    return replace(execution, saved=saved, files=files)


def _name(source: str) -> str:
    return source if source.startswith(("http://", "https://")) else PurePath(source).name


def _content(answer: Any) -> Content:
    """Return a tool's answer as content: text and items as they are, all else as JSON."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, (list, tuple)) and answer and all(isinstance(item, ContentItem) for item in answer):
        return tuple(answer)
    return json.dumps(answer, ensure_ascii=False, indent=4, default=str)


def _sentence(name: str, exc: Exception) -> str:
    """Describe a failure to the model: without a traceback, and with only the last part of paths on this machine."""
    words = exc.message if isinstance(exc, ToolServiceError) else f"{type(exc).__name__}: {exc}"
    words = _ABSOLUTE_PATH.sub(r"\1", neutralise(words)).strip()
    cut = f"{words[:MAX_FAILURE_CHARS]} ..." if len(words) > MAX_FAILURE_CHARS else words
    return f"The tool {name} failed: {cut}"


_log = logging.getLogger(__name__)


def pictures_message(done: Sequence[CallDone], limit: int, messages: Conversation) -> tuple[Message, ...]:
    """Return a message with the first `limit` pictures of these calls; () if they drew nothing.

    The bytes are those that the kernel sent: the saved files lie where code can replace them.
    """
    pictures = [picture for each in done if each.execution for picture in each.execution.pictures][:limit]
    if not pictures:
        return ()
    phrase = _PHRASES[language_of(each for each in messages if isinstance(each, Message))]
    items = (ContentItem(text=phrase), *(ContentItem(image=picture.data_url) for picture in pictures))
    return (Message(USER, items, extra={FIGURES: len(pictures)}),)
