"""Agents with a scripted model: what goes to the model, what comes out of `run`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from agent_tools.agents import Agent, Assistant, Cancel, FnCallAgent, ReActChat
from agent_tools.engines.image_versions import contents_told
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import ModelError
from agent_tools.messages import ContentItem, FunctionCall, Message
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply
from agent_tools.tools import BaseTool, CodeInterpreter, register_tool
from agent_tools.tools.registry import TOOL_REGISTRY

HI = [{"role": "user", "content": "hi"}]


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


class Reader(BaseTool):
    """A tool that takes files, and can be closed."""

    name = "reader"
    description = "Reads."
    parameters = {"type": "object", "properties": {}, "required": []}  # noqa: RUF012

    def __init__(self, cfg: dict[str, Any] | None = None) -> None:
        super().__init__(cfg)
        self.files: list[list[str]] = []
        self.closed = 0

    @property
    def file_access(self) -> bool:
        return True

    def call(self, params: str | dict[str, Any], files: Any = None, **kwargs: Any) -> str:
        self.files.append(files)
        return "read"

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def reader_registered() -> Generator[None, None, None]:
    register_tool("reader")(Reader)
    yield
    del TOOL_REGISTRY["reader"]


def calling(name: str, arguments: str | dict[str, Any] = "{}", text: str = "", piece: int = 0) -> ScriptedReply:
    return ScriptedReply(text=text, calls=[ScriptedCall(name, arguments)], piece=piece)


# -- what comes out ---------------------------------------------------------------------------------------------------


def test_responses_are_cumulative_lists_of_dicts_for_dicts() -> None:
    bot = Assistant(llm=ScriptedModel(ScriptedReply("Hello!", piece=3)), name="Bot")
    assert list(bot.run(HI)) == [[{"role": "assistant", "content": text, "name": "Bot"}] for text in ("Hel", "Hello!")]


def test_messages_in_messages_out() -> None:
    bot = Assistant(llm=ScriptedModel("Hello!"))
    assert bot.run_nonstream([Message("user", "hi")]) == [Message("assistant", "Hello!")]
    assert Assistant(llm=ScriptedModel("Hello!")).run_nonstream([]) == [Message("assistant", "Hello!")]


def test_messages_may_be_given_by_keyword() -> None:
    assert Assistant(llm=ScriptedModel("Hello!")).run_nonstream(messages=HI)[0]["content"] == "Hello!"


def test_a_call_grows_is_answered_and_the_answer_follows() -> None:
    model = ScriptedModel([calling("double", {"x": 21}, text="Let me see.", piece=6), "It is 42."])
    seen = list(Assistant([double], model).run([Message("user", "hi")]))
    said, result, answer = seen[-1]
    assert said.text == "Let me see."
    assert said.function_call == FunctionCall("double", '{"x": 21}')
    assert (result.role, result.name, result.content, result.call_id) == ("function", "double", "42", said.call_id)
    assert answer.text == "It is 42."
    partial = [response[0].function_call.arguments for response in seen if response[0].function_call]
    assert partial[:3] == ["", '{"x": ', '{"x": 21}']
    lengths = [len(response) for response in seen]
    assert lengths == sorted(lengths)


def test_several_calls_of_one_reply_are_messages_of_their_own() -> None:
    reply = ScriptedReply(calls=[ScriptedCall("double", {"x": 1}), ScriptedCall("double", {"x": 2})])
    response = Assistant([double], ScriptedModel([reply, "done"])).run_nonstream([Message("user", "hi")])
    assert [message.role for message in response] == ["assistant", "assistant", "function", "function", "assistant"]
    assert [message.text for message in response[2:4]] == ["2", "4"]


def test_reasoning_is_kept_apart() -> None:
    bot = Assistant(llm=ScriptedModel(ScriptedReply("Yes.", reasoning="Hm.")))
    assert bot.run_nonstream(HI) == [{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]


def test_a_response_can_be_appended_for_the_next_run() -> None:
    model = ScriptedModel([calling("double", {"x": 1}), "2.", "Bye."])
    bot = Assistant([double], model, name="Bot")
    talk: list[dict[str, Any]] = list(HI)
    talk += bot.run_nonstream(talk)
    talk.append({"role": "user", "content": "thanks"})
    assert bot.run_nonstream(talk)[0]["content"] == "Bye."
    roles = [message["role"] for message in model.asked[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert model.asked[-1].messages[2]["tool_call_id"] == model.asked[-1].messages[1]["tool_calls"][0]["id"]


def test_changing_what_was_given_changes_nothing_else() -> None:
    responses = Assistant(llm=ScriptedModel(ScriptedReply("Hello!", piece=3))).run(HI)
    first = next(responses)
    first[0]["content"] = "spoilt"
    assert next(responses)[0]["content"] == "Hello!"


def test_the_models_failure_is_raised() -> None:
    with pytest.raises(ModelError):
        Assistant(llm=ScriptedModel(ScriptedReply(status=500))).run_nonstream(HI)


def test_a_failing_tool_tells_no_paths_and_no_traceback() -> None:
    def fail() -> None:
        raise OSError(f"cannot open {Path(__file__).resolve()}")

    (_, result, _) = Assistant([fail], ScriptedModel([calling("fail"), "ok"])).run_nonstream([Message("user", "hi")])
    assert result.text == f"The tool fail failed: OSError: cannot open {Path(__file__).name}"


# -- what goes to the model -------------------------------------------------------------------------------------------


def test_the_instructions_come_first_and_join_the_conversations_own() -> None:
    model = ScriptedModel(["a", "b"])
    bot = Assistant(llm=model, system_message="Be brief.")
    bot.run_nonstream(HI)
    bot.run_nonstream([{"role": "system", "content": "Be kind."}, *HI])
    assert [asked.messages[0]["content"] for asked in model.asked] == ["Be brief.", "Be brief.\n\nBe kind."]


@pytest.mark.parametrize(
    ("text", "told"),
    [("Look at it", "(Uploaded [file](data.csv)) Look at it"), ("看一下", "（上传了 [文件](data.csv)） 看一下")],
)
def test_files_are_named_to_the_model_in_its_users_language(text: str, told: str) -> None:
    model = ScriptedModel("ok")
    Assistant(llm=model).run_nonstream([{"role": "user", "content": [{"text": text}, {"file": "/secret/data.csv"}]}])
    assert model.asked[0].messages == [{"role": "user", "content": told}]


def test_the_caller_may_set_the_language() -> None:
    model = ScriptedModel("ok")
    content = [{"text": "Look"}, {"file": "https://host/a%20b.csv?key=1"}]
    Assistant(llm=model).run_nonstream([{"role": "user", "content": content}], lang="zh")
    assert model.asked[0].messages[0]["content"].startswith("（上传了 [文件](a b.csv)）")


def test_files_of_all_messages_reach_tools_that_take_them_each_once() -> None:
    tool = Reader()
    bot = Assistant([tool], ScriptedModel([calling("reader"), "ok"]), files=["own.txt"])
    messages = [
        {"role": "user", "content": [{"text": "see"}, {"file": "a.csv"}]},
        {"role": "user", "content": [{"file": "a.csv"}, {"file": "b.csv"}, {"image": "data:image/png;base64,AA=="}]},
    ]
    bot.run_nonstream(messages)
    assert tool.files == [["own.txt", "a.csv", "b.csv"]]


def test_pictures_a_user_gave_stay_pictures(tmp_path: Path) -> None:
    picture = tmp_path / "b.png"
    picture.write_bytes(b"\x89PNG")
    model, tool = ScriptedModel([calling("reader"), "ok"]), Reader()
    Assistant([tool], model).run_nonstream([Message("user", (ContentItem(image=str(picture)),))])
    text, image = model.asked[0].messages[0]["content"]
    assert text["text"] == "(Uploaded [image](b.png)) "
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert tool.files == [[str(picture)]]


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("reader_registered")
def test_tools_by_name_dict_instance_and_function() -> None:
    given = Reader()
    bot = FnCallAgent(["code_interpreter", {"name": "reader", "x": 1}, double], ScriptedModel([]))
    assert list(bot.function_map) == ["code_interpreter", "reader", "double"]
    assert bot.function_map["reader"].cfg == {"name": "reader", "x": 1}
    assert FnCallAgent([given], ScriptedModel([])).function_map["reader"] is given
    timed = FnCallAgent([{"name": "code_interpreter", "timeout": 60}], ScriptedModel([]))
    assert timed.function_map["code_interpreter"].options.timeout == 60  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Assistant, ReActChat, FnCallAgent])
@pytest.mark.parametrize("given", [{}, {"describe": "versions"}])
def test_the_model_is_told_once_what_the_sandbox_has(
    kind: type[FnCallAgent], given: dict[str, str], tmp_path: Path
) -> None:
    tool = CodeInterpreter({"work_dir": str(tmp_path), "flavour": "newest", **given})
    model = ScriptedModel("Final Answer: 4")
    kind([tool], model).run_nonstream(HI)
    assert str(model.asked[0]).count(contents_told(Recipe(flavour="newest"))) == 1


def test_of_an_image_of_ones_own_the_model_is_told_nothing(tmp_path: Path) -> None:
    model = ScriptedModel("4")
    Assistant([CodeInterpreter({"work_dir": str(tmp_path), "image": "mine"})], model).run_nonstream(HI)
    assert [each["function"]["description"] for each in model.asked[0].tools] == [CodeInterpreter.description]


def test_an_unknown_tool_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"Tool code_interpretor is not registered. Did you mean 'code_interpreter'\?"):
        Assistant(["code_interpretor"], ScriptedModel([]))
    with pytest.raises(ValueError, match="function_list has 3"):
        Assistant([3], ScriptedModel([]))  # type: ignore[list-item]


def test_of_two_tools_with_one_name_the_later_counts() -> None:
    first, second = Reader(), Reader()
    with pytest.warns(UserWarning, match="reader is given twice"):
        assert Assistant([first, second], ScriptedModel([])).function_map["reader"] is second


@pytest.mark.usefixtures("reader_registered")
def test_closing_closes_what_the_agent_made_and_nothing_else() -> None:
    given = Reader()
    with Assistant(["reader"], ScriptedModel([])) as bot:
        made = bot.function_map["reader"]
    bot.close()
    Assistant([given], ScriptedModel([])).close()
    assert (made.closed, given.closed) == (1, 0)


@pytest.mark.usefixtures("reader_registered")
def test_an_agent_that_cannot_be_made_leaves_nothing_open() -> None:
    closed: list[int] = []

    class Watched(Reader):
        name = ""

        def close(self) -> None:
            closed.append(1)

    register_tool("watched")(Watched)
    try:
        with pytest.raises(ValueError, match="nonsense is not registered"):
            Assistant(["watched", "nonsense"], ScriptedModel([]))
    finally:
        del TOOL_REGISTRY["watched"]
    assert closed == [1]


def test_a_turns_limits_are_the_agents() -> None:
    model = ScriptedModel([calling("double", {"x": 1}), calling("double", {"x": 2}), "That is all."])
    response = Assistant([double], model, max_rounds=1).run_nonstream([Message("user", "hi")])
    assert [message.role for message in response] == ["assistant", "function"]
    assert model.asked[1].options == {"tool_choice": "none"}
    with pytest.raises(TypeError, match="nonsense"):
        Assistant([double], model, nonsense=1)


# -- ways to run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_arun_gives_what_run_gives(backend: Literal["asyncio", "trio"]) -> None:
    script = [calling("double", {"x": 1}), ScriptedReply("It is 2.", piece=2)]

    async def responses() -> list[Any]:
        return [response async for response in Assistant([double], ScriptedModel(script)).arun(HI)]

    found = anyio.run(responses, backend=backend)
    expected = list(Assistant([double], ScriptedModel(script)).run(HI))
    assert [[message["content"] for message in each] for each in found] == [
        [message["content"] for message in each] for each in expected
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_leaving_arun_early_closes_the_reply(backend: Literal["asyncio", "trio"]) -> None:
    model = ScriptedModel(ScriptedReply("Hello!", piece=1))

    async def first() -> Any:
        async with aclosing(Assistant(llm=model).arun(HI)) as responses:
            async for response in responses:
                return response
        return None

    assert anyio.run(first, backend=backend)[0]["content"] == "H"
    assert model.closed == 1


def test_a_cancelled_run_ends_with_a_valid_conversation() -> None:
    cancel = Cancel()

    def stop() -> str:
        cancel.set()
        return "stopped"

    model = ScriptedModel([calling("stop"), "never"])
    response = Assistant([stop], model).run_nonstream([Message("user", "hi")], cancel=cancel)
    assert [message.role for message in response] == ["assistant", "function"]
    assert len(model.asked) == 1


def test_closing_the_generator_closes_the_reply() -> None:
    model = ScriptedModel(ScriptedReply("Hello!", piece=1))
    responses = Assistant(llm=model).run(HI)
    next(responses)
    responses.close()
    assert model.closed == 1


def test_an_agent_of_your_own_writes_run() -> None:
    class Echo(Agent):
        """Says what it hears."""

        def _run(
            self, messages: list[Message], lang: Literal["en", "zh"] = "en", **kwargs: Any
        ) -> Generator[list[Message], None, None]:
            yield [Message("assistant", f"{lang}: {messages[-1].text}")]

    assert Echo(name="Echo").run_nonstream(HI) == [{"role": "assistant", "content": "en: hi", "name": "Echo"}]


def test_an_agent_without_a_model_says_so_at_once() -> None:
    with pytest.raises(ModelError, match="No model is given"):
        Assistant()
