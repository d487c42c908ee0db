"""An agent that calls tools: each run is one turn of model and tools (turn/loop.py)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from agent_tools.agents.base import Agent, ModelLike
from agent_tools.agents.cancel import Cancel
from agent_tools.agents.conversation_files import files_of, named
from agent_tools.agents.function_list import ToolLike
from agent_tools.agents.steps import Step
from agent_tools.agents.transcript import Transcript
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.messages import Message
from agent_tools.models import Model, get_chat_model
from agent_tools.phrases import Language


class FnCallAgent(Agent):
    """Asks a model and makes its calls, until it has answered.

    Files in the conversation (`{'file': path}`, `{'image': path}`) reach the tools that take files, and the model gets
    their names. Threads may share an agent; code of one tool runs in turn.

    Args:
        function_list, llm, system_message, name, description: see `Agent`.
        turn: limits and options of a turn: `max_rounds`, `max_calls`, `call_timeout`, `deadline`, `options`,
            `python_blocks`, `show_pictures`, `client_functions` of `ToolLoop`.
    """

    def __init__(
        self,
        function_list: Sequence[ToolLike] | None = None,
        llm: ModelLike | None = None,
        system_message: str | None = "",
        name: str | None = None,
        description: str | None = None,
        **turn: Any,
    ) -> None:
        super().__init__(function_list, llm, system_message, name, description)
        self._loop = ToolLoop(self._model_for_loop(get_chat_model(self.llm)), tuple(self.function_map.values()), **turn)

    def steps(
        self, messages: Sequence[Any], cancel: Cancel | None = None, lang: Language | None = None
    ) -> Generator[Step, None, None]:
        """Like `run`, but yields every step as it happens: text, code while it is written, outputs while it runs."""
        return self._steps(*self._prepared(messages, lang), cancel)

    def _run(
        self, messages: list[Message], lang: Language = "en", cancel: Cancel | None = None, **kwargs: Any
    ) -> Generator[list[Message], None, None]:
        transcript = self._transcript()
        with closing(self._steps(messages, lang, cancel)) as steps:
            for step in steps:
                if transcript.add(step):
                    yield transcript.messages

    def _steps(self, messages: list[Message], lang: Language, cancel: Cancel | None) -> Generator[Step, None, None]:
        loop = replace(self._loop, files=self._files(messages))
        return loop.run([named(message, lang) for message in messages], cancel)

    def _files(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return the files for the tools."""
        return files_of(messages)

    def _model_for_loop(self, model: Model) -> Model:
        """Return the model that the loop asks; a subclass may wrap it."""
        return model

    def _transcript(self) -> Transcript:
        """Return an empty transcript, which makes a response of the steps."""
        return Transcript(self.name)
