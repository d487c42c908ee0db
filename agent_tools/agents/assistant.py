"""The agent for most uses: tools, instructions, and its own files besides those of the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_tools.agents.base import ModelLike
from agent_tools.agents.fncall import FnCallAgent
from agent_tools.agents.function_list import ToolLike
from agent_tools.messages import USER, ContentItem, Message
from agent_tools.phrases import Language


class Assistant(FnCallAgent):
    """A tool-calling agent.

        bot = Assistant(llm={'model': 'qwen-max'}, function_list=['code_interpreter'])
        for response in bot.run([{'role': 'user', 'content': [{'text': 'Analyse this.'}, {'file': 'data.csv'}]}]):
            print(response)

    Args:
        function_list, llm, system_message, name, description, turn: see `FnCallAgent`.
        files: paths or URLs that belong to every conversation, as if its first user message contained them.
    """

    def __init__(
        self,
        function_list: Sequence[ToolLike] | None = None,
        llm: ModelLike | None = None,
        system_message: str | None = "",
        name: str | None = None,
        description: str | None = None,
        files: Sequence[str | Path] | None = None,
        **turn: Any,
    ) -> None:
        super().__init__(function_list, llm, system_message, name, description, **turn)
        self.files = [str(file) for file in files or ()]

    def _prepared(self, messages: Sequence[Any], lang: Language | None = None) -> tuple[list[Message], Language]:
        conversation, lang = super()._prepared(messages, lang)
        first = next((place for place, message in enumerate(conversation) if message.role == USER), None)
        if self.files and first is not None:
            given = conversation[first]
            items = (*(ContentItem(file=file) for file in self.files), *given.items)
            conversation[first] = Message(USER, items, name=given.name, extra=given.extra)
        return conversation, lang
