"""A model that calls tools by ReAct, built on a model that only continues text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from agent_tools.agents.react.parser import ReActParser
from agent_tools.messages import (
    ASSISTANT,
    FIGURES,
    FUNCTION,
    TOOL,
    USER,
    ContentItem,
    Language,
    Message,
    language_of,
    messages_of,
)
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

# A conversation with tools as ReAct text, for a model that only continues text. Pure.
#
# The format is the one of Yao et al., https://arxiv.org/abs/2210.03629, with the labels in common use. The labels stay
# English in every language, as models were trained on them.

STOP = ("\nObservation:",)
"""The stop words of a reply: results are ours to write. The line end spares prose about observations."""
_TASK: Mapping[Language, str] = {
    "en": """Answer the question as well as you can. These tools are at your service:

{tools}

Write in this format:

Question: the question to be answered
Thought: what you think about it and what to do next
Action: the tool to use, one of [{names}]
Action Input: the input of the tool
Observation: what the tool answered
... (Thought/Action/Action Input/Observation as often as it takes)
Thought: I now know the final answer
Final Answer: the answer to the question

Never write an Observation yourself: end after the Action Input. Begin!

Question: {question}
""",
    "zh": """请尽力回答问题。你可以使用以下工具：

{tools}

请按照以下格式书写（标签保持英文）：

Question: 需要回答的问题
Thought: 你的思考，以及下一步做什么
Action: 要使用的工具，必须是 [{names}] 之一
Action Input: 工具的输入
Observation: 工具返回的结果
...（Thought/Action/Action Input/Observation 可以重复多次）
Thought: 我现在知道最终答案了
Final Answer: 对问题的最终回答

不要自己编写 Observation：写完 Action Input 就停下。请用中文思考和回答。开始！

Question: {question}
""",
}
_TOOL: Mapping[Language, str] = {
    "en": "{name}: {description} Parameters: {parameters} {format}",
    "zh": "{name}：{description} 输入参数：{parameters} {format}",
}
_NOTHING_MORE: Mapping[Language, str] = {
    "en": "I may not use tools any more and have to answer with what I know.",
    "zh": "我不能再使用工具，必须根据已知信息作答。",
}


def react_messages(
    messages: Sequence[Message],
    functions: Sequence[FunctionDefinition],
    formats: Mapping[str, str],
    language: Language,
    may_act: bool = True,
) -> list[Message]:
    """Return the conversation with the last question, the tools and the work so far as one message of the user.

    Args:
        messages: the conversation.
        functions: definitions of the tools.
        formats: tool name -> instructions for the format of its input.
        language: the language of the instructions.
        may_act: False if the model has to answer now.
    """
    last = max((place for place, message in enumerate(messages) if _is_question(message)), default=len(messages))
    before, question, since = messages[:last], messages[last : last + 1], messages[last + 1 :]
    prompt = _TASK[language].format(
        tools="\n\n".join(_described(function, formats, language) for function in functions),
        names=", ".join(str(function["name"]) for function in functions),
        question=question[0].text if question else "",
    )
    work = scratchpad(since)
    prompt += f"{work}\nThought: " if work else "Thought: "
    if not may_act:
        prompt += f"{_NOTHING_MORE[language]}\nFinal Answer: "
    items = [item for message in (*question, *since) if message.role == USER for item in message.items]
    pictures = [item for item in items if item.kind not in ("text", "file")]
    return [*_history(before), Message(USER, (ContentItem(text=prompt), *pictures) if pictures else prompt)]


def scratchpad(messages: Sequence[Message]) -> str:
    """Write thoughts, calls and results as ReAct text, each result under its call."""
    results = {message.call_id: message.text for message in messages if message.role in (FUNCTION, TOOL)}
    lines = []
    for message in messages:
        if message.role != ASSISTANT:
            continue
        if message.text.strip():
            lines.append(message.text.strip())
        if call := message.function_call:
            lines.append(f"Action: {call.name}\nAction Input: {call.arguments}")
            lines.append(f"Observation: {results.get(message.call_id, '')}")
    return "\n".join(lines)


def _described(function: FunctionDefinition, formats: Mapping[str, str], language: Language) -> str:
    described = _TOOL[language].format(
        name=function["name"],
        description=function.get("description", ""),
        parameters=json.dumps(function.get("parameters") or {}, ensure_ascii=False),
        format=formats.get(str(function["name"]), ""),
    )
    return described.rstrip()


def _is_question(message: Message) -> bool:
    return message.role == USER and FIGURES not in (message.extra or {})


def _history(messages: Sequence[Message]) -> list[Message]:
    """Return the earlier turns, with calls and results written into the assistant's text."""
    turns: list[Message] = []
    work: list[Message] = []  # calls, results and texts of one turn
    for message in messages:
        if message.role in (ASSISTANT, FUNCTION, TOOL) or (message.role == USER and not _is_question(message)):
            work.append(message)
            continue
        turns += [Message(ASSISTANT, scratchpad(work))] if work else []
        turns.append(message)
        work = []
    return turns + ([Message(ASSISTANT, scratchpad(work))] if work else [])


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
