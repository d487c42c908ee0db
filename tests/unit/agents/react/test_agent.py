"""The ReAct agent with a scripted model: its prompt, its stop words, its one growing message."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.agents import ReActChat
from agent_tools.agents.steps import Finished
from agent_tools.messages import Message
from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedModel, ScriptedReply

HI = [{"role": "user", "content": "What is twice 21?"}]
ACT = 'I double it.\nAction: double\nAction Input: {"x": 21}'


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def agent(*script: ScriptedReply | str, **more: Any) -> tuple[ReActChat, ScriptedModel]:
    model = ScriptedModel(list(script))
    return ReActChat([double], model, **more), model


def test_the_response_is_one_message_that_grows() -> None:
    bot, _ = agent(ScriptedReply(ACT, piece=4), "I know.\nFinal Answer: 42", name="Analyst")
    seen = list(bot.run(HI))
    text = (
        'Thought: I double it.\nAction: double\nAction Input: {"x": 21}\nObservation: 42\n'
        "Thought: I know.\nFinal Answer: 42"
    )
    assert seen[-1] == [{"role": "assistant", "content": text, "name": "Analyst"}]
    assert all(text.startswith(response[0]["content"]) for response in seen)
    assert len(seen) > 10


def test_the_prompt_holds_tools_question_and_all_that_was_done() -> None:
    bot, model = agent(ACT, "Final Answer: 42")
    bot.run_nonstream(HI)
    first, second = (asked.messages[-1]["content"] for asked in model.asked)
    for part in ("double: Double a number.", '"x": {"type": "integer"}', "one of [double]", "Question: What is twice"):
        assert part in first
    assert first.endswith("\nThought: ")
    assert second == f'{first}I double it.\nAction: double\nAction Input: {{"x": 21}}\nObservation: 42\nThought: '
    assert model.asked[0].tools == []
    assert model.asked[0].options == {"stop": ["\nObservation:"]}


def test_the_code_interpreters_input_is_asked_for_in_a_fence() -> None:
    model = ScriptedModel("Final Answer: ok")
    ReActChat(["code_interpreter"], model).run_nonstream(HI)
    assert "Enclose the code within triple backticks" in model.asked[0].messages[0]["content"]


def test_chinese_questions_get_chinese_instructions() -> None:
    bot, model = agent("Final Answer: 好")
    bot.run_nonstream([{"role": "user", "content": "21的两倍是多少？"}])
    assert model.asked[0].messages[0]["content"].startswith("请尽力回答问题。你可以使用以下工具：\n\ndouble：")


def test_earlier_turns_and_instructions_stay() -> None:
    bot, model = agent("Final Answer: bye", system_message="Be brief.")
    earlier = Message("assistant", "Thought: hm\nFinal Answer: hello")
    bot.run_nonstream([Message("user", "hi"), earlier, Message("user", "bye")])
    roles = [(message["role"], message["content"][:9]) for message in model.asked[0].messages]
    assert roles[:3] == [("system", "Be brief."), ("user", "hi"), ("assistant", "Thought: ")]
    assert "Question: bye\n" in model.asked[0].messages[3]["content"]


def test_own_stop_words_are_sent_too() -> None:
    bot, model = agent("Final Answer: ok", options={"stop": "END", "temperature": 0})
    bot.run_nonstream(HI)
    assert model.asked[0].options == {"stop": ["\nObservation:", "END"], "temperature": 0}


def test_a_reply_that_stop_words_ended_in_thought_is_asked_for_again_without_them() -> None:
    bot, model = agent(ScriptedReply(reasoning="I write Thought, Action,"), "Final Answer: 42")
    (message,) = bot.run_nonstream([Message("user", "hi")])
    assert message.text == "Final Answer: 42"
    assert [asked.options for asked in model.asked] == [{"stop": ["\nObservation:"]}, {}]


def test_usage_of_both_is_counted() -> None:
    bot, _ = agent(ScriptedReply(reasoning="cut"), "Final Answer: 42")
    assert list(bot.steps(HI))[-1] == Finished("stop", Usage(20, 10))


def test_results_made_up_are_not_believed_and_the_reply_is_closed() -> None:
    bot, model = agent(ScriptedReply(f"{ACT}\nObservation: 43\nFinal Answer: 43", piece=5), "Final Answer: 42")
    (message,) = bot.run_nonstream([Message("user", "hi")])
    assert "43" not in message.text
    assert message.text.endswith("Observation: 42\nFinal Answer: 42")
    assert model.closed == 1


def test_several_actions_have_each_its_result() -> None:
    bot, model = agent(f'{ACT}\nAction: double\nAction Input: {{"x": 1}}', "Final Answer: ok")
    (message,) = bot.run_nonstream([Message("user", "hi")])
    assert 'Input: {"x": 21}\nObservation: 42\nAction: double\nAction Input: {"x": 1}\nObservation: 2\n' in message.text
    assert message.text.split("Final")[0].strip() in model.asked[1].messages[0]["content"]


def test_an_action_cut_at_the_token_limit_is_not_taken() -> None:
    bot, _ = agent(ScriptedReply(ACT, finish_reason="length"), "Final Answer: no")
    (message,) = bot.run_nonstream([Message("user", "hi")])
    assert "Observation: The call was not made: the reply reached its token limit" in message.text


def test_after_the_last_round_the_model_is_told_to_answer() -> None:
    bot, model = agent(ACT, "42", max_rounds=1)
    bot.run_nonstream(HI)
    asked = model.asked[1]
    assert asked.messages[0]["content"].endswith("have to answer with what I know.\nFinal Answer: ")
    assert "tool_choice" not in asked.options


def test_without_tools_the_conversation_is_left_as_it_is() -> None:
    model = ScriptedModel("Hello!")
    (message,) = ReActChat(llm=model).run_nonstream([Message("user", "hi")])
    assert model.asked[0].messages == [{"role": "user", "content": "hi"}]
    assert model.asked[0].options == {}
    assert "Hello!" in message.text


@pytest.mark.parametrize("text", ["", "Thought: "])
def test_a_reply_that_says_nothing_ends_the_turn(text: str) -> None:
    bot, _ = agent(ScriptedReply(text))
    assert list(bot.steps(HI))[-1] == Finished("stop", Usage(10, 5))
