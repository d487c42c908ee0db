"""An agent: tools, a model, instructions; messages in, a response out. The shape is Qwen-Agent's `Agent`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, TypeVar, Union, cast

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.function_list import ToolLike, tools_of
from agent_tools.messages import SYSTEM, Message, messages_of
from agent_tools.models import Model, OpenAIModel, get_chat_model
from agent_tools.models.base import Json, JsonObject
from agent_tools.phrases import Language, language_of
from agent_tools.runtime.in_thread import iterate_in_thread

MessageT = TypeVar("MessageT", Message, JsonObject)
ModelLike = Union[Model, Json, str]


class Agent(ABC):
    """Base of all agents. A subclass writes `_run`.

    Args:
        function_list: the tools it may call; see `ToolLike`. Tools made here from names and dicts are closed with the
            agent, tools passed in are not.
        llm: a model, its configuration, or its name; see `get_chat_model`.
        system_message: instructions, put before the conversation's own.
        name, description: of the agent; its messages carry the name.

    Raises:
        ValueError: a tool is not registered.
        ModelError: `llm` names no model.
    """

    def __init__(
        self,
        function_list: Sequence[ToolLike] | None = None,
        llm: ModelLike | None = None,
        system_message: str | None = "",
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        self.system_message = system_message or ""
        self.name = name
        self.description = description
        with ExitStack() as owned:
            self.function_map = tools_of(function_list, owned)
            self.llm = None if llm is None else get_chat_model(llm)
            if isinstance(self.llm, OpenAIModel) and self.llm is not llm:
                owned.callback(self.llm.close)
            self._owned = owned.pop_all()

    def run(self, messages: Sequence[MessageT], **kwargs: Any) -> Generator[list[MessageT], None, None]:
        """Answer a conversation. Each yield is the whole response so far, as a list of messages.

        A conversation of dicts is answered in dicts, any other in `Message`s. Closing the generator ends the run. The
        last response may be appended to the conversation for the next run.

        Args:
            messages: the conversation, in this package's shape or that of chat completions.
            kwargs: `lang` ('en', 'zh') for the agent's own phrases, instead of the user's language; `cancel`, a
                `Cancel` that ends the run from any thread; more if the agent takes it.

        Raises:
            ModelError: the model could not be asked, or broke off.
        """
        gives_dicts = bool(messages) and not any(isinstance(message, Message) for message in messages)
        conversation, lang = self._prepared(messages, kwargs.pop("lang", None))
        with closing(self._run(conversation, lang=lang, **kwargs)) as responses:
            for response in responses:
                named = [self._signed(message) for message in response]
                yield cast("list[MessageT]", [message.to_dict() for message in named] if gives_dicts else named)

    def run_nonstream(self, messages: Sequence[MessageT], **kwargs: Any) -> list[MessageT]:
        """Do `run` to its end, and return the whole response."""
        response: list[MessageT] = []
        for response in self.run(messages, **kwargs):  # noqa: B007  (the last one counts)
            pass
        return response

    def arun(self, messages: Sequence[MessageT], **kwargs: Any) -> AsyncGenerator[list[MessageT], None]:
        """Do `run` in asyncio or trio. Cancelling it ends the run, and then waits for that end."""
        cancel = kwargs.pop("cancel", None) or Cancel()
        return iterate_in_thread(self.run(messages, cancel=cancel, **kwargs), cancel.set)

    def close(self) -> None:
        """Close the tools and the model that were made here. Closing twice does nothing."""
        self._owned.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _run(
        self, messages: list[Message], lang: Language = "en", **kwargs: Any
    ) -> Generator[list[Message], None, None]:
        """Answer, and yield the response so far. `messages` begin with the agent's instructions, if it has any."""

    def _prepared(self, messages: Sequence[Any], lang: Language | None = None) -> tuple[list[Message], Language]:
        """Return the conversation as values, with the instructions in front, and the language of phrases."""
        conversation = messages_of(messages)
        lang = lang or language_of(conversation)
        if not self.system_message:
            return conversation, lang
        if conversation and conversation[0].role == SYSTEM:
            first = conversation.pop(0)
            return [replace(first, content=f"{self.system_message}\n\n{first.text}"), *conversation], lang
        return [Message(SYSTEM, self.system_message), *conversation], lang

    def _signed(self, message: Message) -> Message:
        return replace(message, name=self.name) if self.name and not message.name else message
