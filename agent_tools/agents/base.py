"""What an agent is: tools, a model, instructions; messages in, a response out. The shape is Qwen-Agent's `Agent`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, Union, cast

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.language import Language, language_of
from agent_tools.agents.toolbox import ToolLike, tools_of
from agent_tools.messages import SYSTEM, Message, messages_of
from agent_tools.models import Model, OpenAIModel, get_chat_model

Said = TypeVar("Said", Message, dict[str, Any])
ModelLike = Union[Model, Mapping[str, Any], str]
_END = object()


class Agent(ABC):
    """Base of all agents. A subclass writes `_run`.

    Args:
        function_list: what it may call; see `ToolLike`. Tools made here from names and dicts are closed with the agent,
            tools passed in are left alone.
        llm: a model, its configuration, or its name; see `get_chat_model`.
        system_message: instructions, put before the conversation's own.
        name, description: of the agent; the name is on the messages it says.

    Raises:
        ValueError: a tool is not registered.
        ModelError: `llm` means no model.
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

    def run(self, messages: Sequence[Said], **kwargs: Any) -> Generator[list[Said], None, None]:
        """Answer a conversation. Yields the response so far, again and again, as a whole list of messages.

        Dicts in give dicts out, else `Message`s come. Closing the generator ends what is going on. What stands in the
        response after the last yield may be appended to the conversation for the next run.

        Args:
            messages: the conversation, in this package's shape or that of chat completions.
            kwargs: `lang` ('en', 'zh') for the agent's own phrases, instead of the user's language; `cancel`, a
                `Cancel` that ends the run from any thread; more as the agent takes it.

        Raises:
            ModelError: the model could not be asked, or broke off.
        """
        gives_dicts = bool(messages) and not any(isinstance(message, Message) for message in messages)
        conversation, lang = self._prepared(messages, kwargs.pop("lang", None))
        plain = _Plain()
        with closing(self._run(conversation, lang=lang, **kwargs)) as responses:
            for response in responses:
                named = [self._signed(message) for message in response]
                yield cast("list[Said]", plain.dicts(named) if gives_dicts else named)

    def run_nonstream(self, messages: Sequence[Said], **kwargs: Any) -> list[Said]:
        """`run` to its end: the whole response."""
        response: list[Said] = []
        for response in self.run(messages, **kwargs):  # noqa: B007  (the last one counts)
            pass
        return response

    async def arun(self, messages: Sequence[Said], **kwargs: Any) -> AsyncGenerator[list[Said], None]:
        """`run` for asyncio and trio. Cancelling it ends what is going on, and then waits for that."""
        import anyio
        import anyio.to_thread

        from agent_tools.runtime.in_thread import in_thread

        cancel = kwargs.pop("cancel", None) or Cancel()
        responses = self.run(messages, cancel=cancel, **kwargs)
        try:
            while (response := await in_thread(lambda: next(responses, _END), cancel.set)) is not _END:
                yield cast("list[Said]", response)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(responses.close)

    def close(self) -> None:
        """Close the tools and the model made here; what was passed in is left alone. Closing twice does nothing."""
        self._owned.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _run(
        self, messages: list[Message], lang: Language = "en", **kwargs: Any
    ) -> Generator[list[Message], None, None]:
        """Answer; yields the response so far. `messages` begin with the agent's instructions, if it has any."""

    def _prepared(self, messages: Sequence[Any], lang: Language | None = None) -> tuple[list[Message], Language]:
        """The conversation as values, with the instructions in front, and the language of phrases."""
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


class _Plain:
    """Messages as dicts; one that stays the same from yield to yield is read once."""

    def __init__(self) -> None:
        self._known: list[tuple[Message, dict[str, Any]]] = []

    def dicts(self, messages: list[Message]) -> list[dict[str, Any]]:
        known = self._known
        for place, message in enumerate(messages):
            if place < len(known) and known[place][0] is message:
                continue
            known[place:] = [(message, message.to_dict())]
        return [dict(plain) for _, plain in known[: len(messages)]]
