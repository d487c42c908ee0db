"""A model that only continues text, made one that calls tools: by ReAct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agent_tools.agents.language import Language, language_of
from agent_tools.agents.react_parser import ReActParser
from agent_tools.agents.react_prompt import STOP, react_messages
from agent_tools.messages import messages_of
from agent_tools.models.base import Conversation, Delta, Finish, Model, ReasoningDelta, TextDelta, Usage


class ReActModel:
    """A `Model` whose calls are actions in the text of another. Functions are told in the prompt, never declared.

    Args:
        model: who is asked.
        formats: tool name -> how its input is to be written.
    """

    def __init__(self, model: Model, formats: Mapping[str, str]) -> None:
        self.model = model
        self.formats = formats

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[Delta]:
        """See `Model.reply`; `close` of what comes back is for any thread, if it is for the model's own replies."""
        conversation = messages_of(messages)
        asked = dict(options or {})
        may_act = asked.pop("tool_choice", None) != "none"
        language: Language = language_of(conversation)
        prompt = react_messages(conversation, tools, self.formats, language, may_act) if tools else conversation
        return _Reply(self.model, prompt, asked, {str(tool["name"]) for tool in tools})


class _Reply(Iterator[Delta]):
    """The deltas of one reply. Where stop words ended it while the model still thought, it is asked without them."""

    def __init__(self, model: Model, prompt: Conversation, options: dict[str, Any], tools: set[str]) -> None:
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

    def _ask(self, stop: Mapping[str, Any]) -> Iterator[Delta]:
        return self._model.reply(self._prompt, (), {**self._options, **stop})

    def close(self) -> None:
        """Give it up."""
        self._is_closed = True
        _close(self._inner)

    def _read(self) -> Iterator[Delta]:
        has_thought = has_spoken = False
        for delta in self._said():
            has_thought = has_thought or isinstance(delta, ReasoningDelta)
            has_spoken = has_spoken or isinstance(delta, TextDelta)
            yield from self._parsed(delta)
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
        """What the model says, up to where nothing more of it is wanted."""
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
                _close(self._inner)
                return

    def _parsed(self, delta: Delta) -> Iterator[Delta]:
        if isinstance(delta, TextDelta):
            yield from self._parser.feed(delta.text)
        elif isinstance(delta, ReasoningDelta):
            yield delta


def _close(reply: Iterator[Delta]) -> None:
    close = getattr(reply, "close", None)
    if close is not None:
        with suppress(ValueError):  # a plain generator that is just at work
            close()
