"""A model that calls tools by ReAct, built on a model that only continues text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent_tools.agents.react.parser import ReActParser
from agent_tools.agents.react.text import STOP, react_messages
from agent_tools.messages import messages_of
from agent_tools.models.base import (
    Conversation,
    Delta,
    Finish,
    FunctionDefinition,
    JsonObject,
    Model,
    Options,
    ReasoningDelta,
    TextDelta,
    Usage,
    abandon,
)
from agent_tools.phrases import Language, language_of


class ReActModel:
    """A `Model` that reads actions in another model's text as calls. Functions are described in the prompt.

    Args:
        model: the model that is asked.
        formats: tool name -> instructions for the format of its input.
    """

    def __init__(self, model: Model, formats: Mapping[str, str]) -> None:
        self.model = model
        self.formats = formats

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[FunctionDefinition] = (),
        options: Options | None = None,
    ) -> Iterator[Delta]:
        """Ask the model; see `Model.reply`. Any thread may close the reply, if it may close the model's own replies."""
        conversation = messages_of(messages)
        asked = dict(options or {})
        may_act = asked.pop("tool_choice", None) != "none"
        language: Language = language_of(conversation)
        prompt = react_messages(conversation, tools, self.formats, language, may_act) if tools else conversation
        return _Reply(self.model, prompt, asked, {str(tool["name"]): False for tool in tools})


class _Reply(Iterator[Delta]):
    """The deltas of one reply. If a stop word cut the model's reasoning short, it is asked again without stop words."""

    def __init__(self, model: Model, prompt: Conversation, options: JsonObject, tools: Mapping[str, object]) -> None:
        self._model, self._prompt, self._options = model, prompt, options
        given = options.pop("stop", None) or ()
        self._stop = {"stop": [*STOP, *((given,) if isinstance(given, str) else given)]} if tools else {}
        self._inner = self._ask(self._stop)
        self._parser = ReActParser(tools)
        self._usage: Usage | None = None
        self._reason = ""
        self._is_closed = False
        self._deltas = self._read()

    def __next__(self) -> Delta:
        return next(self._deltas)

    def _ask(self, stop: Options) -> Iterator[Delta]:
        return self._model.reply(self._prompt, (), {**self._options, **stop})

    def close(self) -> None:
        """Abandon the reply."""
        self._is_closed = True
        abandon(self._inner)

    def _read(self) -> Iterator[Delta]:
        has_thought = has_spoken = False
        for delta in self._said():
            has_thought = has_thought or isinstance(delta, ReasoningDelta)
            has_spoken = has_spoken or isinstance(delta, TextDelta)
            yield from self._parsed(delta)
        # `Observation:` in a model's reasoning has no meaning, but the stop word ends the reply there
        if has_thought and not has_spoken and self._reason == "stop" and self._stop and not self._is_closed:
            self._inner = self._ask({})
            for delta in self._said():
                yield from self._parsed(delta)
        if not self._reason:
            return
        yield from self._parser.finish()
        if self._usage:
            yield self._usage
        yield Finish("tool_calls" if self._parser.calls and self._reason == "stop" else self._reason)

    def _said(self) -> Iterator[Delta]:
        """Yield the model's deltas, until the parser needs no more."""
        for delta in self._inner:
            match delta:
                case Usage():
                    self._usage = (self._usage or Usage()) + delta
                case Finish(reason):
                    self._reason = reason
                case _:
                    yield delta
            if self._parser.is_over:
                self._reason = "stop"
                abandon(self._inner)
                return

    def _parsed(self, delta: Delta) -> Iterator[Delta]:
        if isinstance(delta, TextDelta):
            yield from self._parser.feed(delta.text)
        elif isinstance(delta, ReasoningDelta):
            yield delta
