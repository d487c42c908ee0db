"""A conversation with tools as ReAct text, for a model that only continues text. Pure.

The format is the one of Yao et al., https://arxiv.org/abs/2210.03629, with the labels in common use. The labels stay
English in every language, as models were trained on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agent_tools.messages import ASSISTANT, FIGURES, FUNCTION, TOOL, USER, ContentItem, Message
from agent_tools.models.base import FunctionDefinition
from agent_tools.phrases import Language

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
