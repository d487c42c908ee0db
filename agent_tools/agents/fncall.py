"""An agent that calls tools: each run is one turn of model and tools (turn/loop.py)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agent_tools.agents.base import Agent, ModelLike, ToolLike
from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import CallBegun, CallDelta, CallDone, ReasoningDelta, RoundDone, Step, TextDelta
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.machine.folder import safe_name
from agent_tools.messages import ASSISTANT, CALL_ID, FUNCTION, USER, ContentItem, FunctionCall, Language, Message
from agent_tools.models import Model, get_chat_model

# Converts the steps of a turn into the messages of a growing response.


class Transcript:
    """The response so far: text, calls and results as separate messages. `name` is the agent's."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._settled: list[Message] = []  # of the finished rounds
        self._round: list[Message] = []  # of the current round
        self._positions: dict[str, int] = {}  # call id -> index in the round

    @property
    def messages(self) -> list[Message]:
        """Return all messages, in a list that the caller owns."""
        return [*self._settled, *self._round]

    def add(self, step: Step) -> bool:
        """Add a step, and return whether it changed the response."""
        match step:
            case TextDelta(text):
                self._say(text, "")
            case ReasoningDelta(text):
                self._say("", text)
            case CallBegun(id_, name):
                self._begin(id_, name)
            case CallDelta(id_, arguments):
                self._write(id_, arguments)
            case CallDone():
                result = Message(FUNCTION, step.content, name=step.call.name, extra={CALL_ID: step.call.id})
                self._round.append(result)
            case RoundDone():
                return self._settle(step)
            case _:
                return False
        return True

    def _say(self, text: str, reasoning: str) -> None:
        if not self._round or self._round[-1].function_call or self._round[-1].role != ASSISTANT:
            self._round.append(Message(ASSISTANT, name=self._name))
        last = self._round[-1]
        thought = f"{last.reasoning_content or ''}{reasoning}" or None
        self._round[-1] = replace(last, content=last.text + text, reasoning_content=thought)

    def _begin(self, id_: str, name: str) -> None:
        call, extra = FunctionCall(name, ""), {CALL_ID: id_}
        if self._round and not self._positions:  # the first call belongs to the text before it
            self._round[-1] = replace(self._round[-1], function_call=call, extra=extra)
        else:
            self._round.append(Message(ASSISTANT, name=self._name, function_call=call, extra=extra))
        self._positions[id_] = len(self._round) - 1

    def _write(self, id_: str, arguments: str) -> None:
        place = self._positions[id_]
        call = self._round[place].function_call
        assert call is not None
        written = replace(call, arguments=call.arguments + arguments)
        self._round[place] = replace(self._round[place], function_call=written)

    def _settle(self, done: RoundDone) -> bool:
        """Replace the round's messages by the final ones. Pictures for the model are not part of a response."""
        settled = [
            replace(message, name=self._name) if message.role == ASSISTANT else message
            for message in done.messages
            if message.role != USER
        ]
        is_changed = settled != self._round
        self._settled += settled
        self._round, self._positions = [], {}
        return is_changed


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


# The files in a conversation: their list for the tools, and their names in the text for the model.


_PHRASES = {
    ("en", "file"): "(Uploaded [file]({}))",
    ("en", "image"): "(Uploaded [image]({}))",
    ("zh", "file"): "（上传了 [文件]({})）",
    ("zh", "image"): "（上传了 [图片]({})）",
}


def files_of(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the files and pictures that users gave by path or URL, each once, in order."""
    found = (item for message in messages if message.role == USER for item in message.items if _is_file(item))
    return tuple(dict.fromkeys(str(item.value) for item in found))


def named(message: Message, language: Language) -> Message:
    """Return a user's message with its files named in the text; pictures stay in it for models that read images."""
    files = [item for item in message.items if _is_file(item)]
    if message.role != USER or not files:
        return message
    note = " ".join(_PHRASES[language, item.kind].format(_name(str(item.value))) for item in files)
    rest = tuple(item for item in message.items if item.kind != "file")
    if all(item.kind == "text" for item in rest):
        return replace(message, content=f"{note} {message.text}".rstrip())
    return replace(message, content=(ContentItem(text=f"{note} "), *rest))


def _is_file(item: ContentItem) -> bool:
    return item.kind == "file" or (item.kind == "image" and not str(item.value).startswith("data:"))


def _name(source: str) -> str:
    """Return the expected name of a file for the tools, before the file is fetched."""
    parts = urlsplit(source) if "://" in source else None
    return safe_name(unquote(parts.path) or parts.hostname or "file" if parts else source)


# The agent for most uses: tools, instructions, and its own files besides those of the conversation.


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
