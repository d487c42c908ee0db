"""The loop between model and tools, with a scripted model and tools of every kind."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import (
    Call,
    CallBegun,
    CallDelta,
    CallDone,
    CallOutput,
    CallReady,
    CallRunning,
    Finished,
    ReasoningDelta,
    RoundDone,
    Step,
    TextDelta,
)
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.errors import ModelError, ToolServiceError
from agent_tools.messages import USER, ContentItem, Message
from agent_tools.models import OpenAIModel
from agent_tools.models.base import Usage
from agent_tools.results.execution import Execution, Output, Stream
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply, ScriptedServer
from agent_tools.tools import BaseTool, CodeTool

HI = [Message(USER, "hi")]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


class Doubler(BaseTool):
    """An ordinary tool."""

    name = "double"
    description = "Doubles x."
    parameters = SCHEMA

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> Any:
        return {"twice": 2 * self._verify_json_format_args(params)["x"]}


class Failing(BaseTool):
    """A tool that fails as it is told."""

    name = "fail"
    description = "Fails."
    parameters = SCHEMA

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> Any:
        raise self.failure


class Coder(CodeTool):
    """A tool that runs code, or says so: one output for each line; it can be made to wait after the first."""

    name = "python"
    description = "Runs code."
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}  # noqa: RUF012

    def __init__(self, waits: bool = False) -> None:
        super().__init__()
        self.waits = waits
        self.ended = threading.Event()
        self.codes: list[str] = []
        self.given: list[Any] = []

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> Any:
        raise NotImplementedError

    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: Any = None,
    ) -> Generator[Output, None, Execution]:
        assert isinstance(params, str)
        self.codes.append(params)
        self.given.append((files, timeout))
        try:
            outputs = []
            for line in json.loads(params)["code"].splitlines():
                outputs.append(Stream("stdout", line))
                yield outputs[-1]
                if self.waits:
                    cancelled.wait()
                    break
            return Execution(tuple(outputs))
        finally:
            self.ended.set()

    def markdown(self, execution: Execution) -> str:
        return execution.stdout

    def cancel(self, cancelled: threading.Event) -> None:
        cancelled.set()


def call(name: str, id_: str | None = None, /, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name, arguments, id_)


def calling(*calls: ScriptedCall, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=calls, **more)


def run(model: ScriptedModel, *tools: BaseTool, **options: Any) -> list[Step]:
    return list(ToolLoop(model, tools, **options).run(HI))


def of(kind: type, steps: list[Step]) -> list[Any]:
    return [step for step in steps if isinstance(step, kind)]


def answers(steps: list[Step]) -> list[str]:
    return [step.text for step in of(CallDone, steps)]


def said(steps: list[Step]) -> str:
    return "".join(step.text for step in of(TextDelta, steps))


# -- plain turns ------------------------------------------------------------------------------------------------------


def test_an_answer_without_tools() -> None:
    steps = run(ScriptedModel(ScriptedReply(text="Hello", reasoning="hm", piece=3)))
    message = Message("assistant", "Hello", reasoning_content="hm")
    assert steps == [
        ReasoningDelta("hm"),
        TextDelta("Hel"),
        TextDelta("lo"),
        RoundDone(1, (message,), Usage(10, 5), "stop"),
        Finished("stop", Usage(10, 5)),
    ]


def test_a_call_step_by_step() -> None:
    tool = Coder()
    model = ScriptedModel([calling(call("python", "c1", code="a\nb"), text="Let me."), "Done."])
    steps = run(model, tool, files=["a.csv"], call_timeout=7)
    made = Call("c1", "python", '{"code": "a\\nb"}')
    assert steps == [
        TextDelta("Let me."),
        CallBegun("c1", "python"),
        CallDelta("c1", made.arguments, "a\nb"),
        CallReady(made, "a\nb"),
        CallRunning("c1", "python"),
        CallOutput("c1", Stream("stdout", "a")),
        CallOutput("c1", Stream("stdout", "b")),
        CallDone(made, "ab", Execution((Stream("stdout", "a"), Stream("stdout", "b")))),
        steps[8],
        TextDelta("Done."),
        steps[10],
        Finished("stop", Usage(20, 10)),
    ]
    assert tool.given == [(["a.csv"], 7)]
    assert [message.role for message in of(RoundDone, steps)[0].messages] == ["assistant", "function"]


def test_the_model_is_told_the_result_under_the_calls_id() -> None:
    model = ScriptedModel([calling(call("double", "c1", x=2), call("double", "c2", x=3)), "4 and 6"])
    run(model, Doubler())
    _, assistant, first, second = model.asked[1].messages
    assert [each["id"] for each in assistant["tool_calls"]] == ["c1", "c2"]
    assert first == {"role": "tool", "tool_call_id": "c1", "content": '{\n    "twice": 4\n}'}
    assert second["tool_call_id"] == "c2"
    assert model.asked[1].tools == model.asked[0].tools
    assert model.asked[1].tools[0]["function"]["name"] == "double"


def test_code_comes_while_the_model_writes_it() -> None:
    steps = run(ScriptedModel([calling(call("python", code='print("é😀")'), piece=1), "Done."]), Coder())
    deltas = of(CallDelta, steps)
    assert "".join(delta.code for delta in deltas) == of(CallReady, steps)[0].code == 'print("é😀")'
    assert len([delta for delta in deltas if delta.code]) > 10


def test_ids_are_made_unique_when_a_server_counts_anew() -> None:
    steps = run(ScriptedModel([calling(call("double", "0", x=1)), calling(call("double", "0", x=2)), "ok"]), Doubler())
    assert len({step.call.id for step in of(CallDone, steps)}) == 2


def test_usage_is_the_sum_over_rounds_once() -> None:
    replies = [calling(call("double", x=1), usage=Usage(100, 50, 10, 5)), ScriptedReply(text="2", usage=None)]
    steps = run(ScriptedModel(replies), Doubler())
    assert [step.usage for step in of(RoundDone, steps)] == [Usage(100, 50, 10, 5), None]
    assert steps[-1] == Finished("stop", Usage(100, 50, 10, 5))


def test_items_of_a_tool_are_passed_on() -> None:
    class Painter(Doubler):
        def call(self, params: Any, **kwargs: Any) -> Any:
            return [ContentItem(image="http://x/a.png")]

    (done,) = of(CallDone, run(ScriptedModel([calling(call("double", x=1)), "ok"]), Painter()))
    assert done.content == (ContentItem(image="http://x/a.png"),)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_after_the_last_round_the_model_is_asked_once_more_without_tools() -> None:
    model = ScriptedModel([*[calling(call("double", x=1))] * 2, "Enough."])
    steps = run(model, Doubler(), max_rounds=2)
    assert [asked.options.get("tool_choice") for asked in model.asked] == [None, None, "none"]
    assert steps[-1].reason == "stop"  # type: ignore[union-attr]
    assert said(steps) == "Enough."


def test_a_model_that_calls_without_end_is_stopped() -> None:
    steps = run(ScriptedModel(lambda request: calling(call("double", x=1))), Doubler(), max_rounds=3)
    assert len(of(CallDone, steps)) == 3
    assert steps[-1] == Finished("rounds", Usage(40, 20))


def test_the_environment_sets_the_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN_AGENT_MAX_LLM_CALL_PER_RUN", "2")
    assert len(of(CallDone, run(ScriptedModel(lambda request: calling(call("double", x=1))), Doubler()))) == 2


def test_calls_above_their_number_are_refused_and_the_model_asked_to_answer() -> None:
    model = ScriptedModel([calling(*[call("double", x=1)] * 3), "Two."])
    steps = run(model, Doubler(), max_calls=2)
    assert ["were" in text or "not made" in text for text in answers(steps)] == [False, False, True]
    assert model.asked[1].options["tool_choice"] == "none"


def test_a_forced_call_is_forced_once() -> None:
    model = ScriptedModel([calling(call("double", x=1)), "2"])
    run(model, Doubler(), options={"tool_choice": "required", "temperature": 0})
    assert [asked.options for asked in model.asked] == [
        {"tool_choice": "required", "temperature": 0},
        {"tool_choice": "auto", "temperature": 0},
    ]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_on_tokens_is_of_the_whole_turn(name: str) -> None:
    model = ScriptedModel(lambda request: calling(call("double", x=1), usage=Usage(9, 45)))
    steps = run(model, Doubler(), options={name: 100, "temperature": 0})
    assert [asked.options for asked in model.asked] == [{name: 100, "temperature": 0}, {name: 55, "temperature": 0}]
    assert len(answers(steps)) == 2
    assert steps[-1] == Finished("length", Usage(18, 90))


def test_an_answer_that_is_asked_for_again_in_a_format_takes_nothing_of_a_limit() -> None:
    model = ScriptedModel([ScriptedReply(text="two", usage=Usage(9, 95)), ScriptedReply(text="{}", usage=Usage(9, 2))])
    steps = run(model, Doubler(), options={"max_tokens": 100, "response_format": {"type": "json_object"}})
    assert [asked.options["max_tokens"] for asked in model.asked] == [100, 100]
    assert (said(steps), steps[-1]) == ("{}", Finished("stop", Usage(18, 97)))


def test_a_call_cut_at_the_token_limit_is_not_run() -> None:
    cut = ScriptedReply(calls=[ScriptedCall("python", "print(1")], finish_reason="length")
    tool = Coder()
    steps = run(ScriptedModel([cut, "Sorry."]), tool)
    assert tool.codes == []
    assert "token limit" in answers(steps)[0]


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (ToolServiceError(code="C", message="no more pens"), "The tool fail failed: no more pens"),
        (ValueError("bad x"), "The tool fail failed: ValueError: bad x"),
        (OSError("/home/ann/secret/data.csv is gone"), "The tool fail failed: OSError: data.csv is gone"),
        (ValueError("see https://x.org/a/b"), "The tool fail failed: ValueError: see https://x.org/a/b"),
        (ValueError("\x1b[31mred"), "The tool fail failed: ValueError: red"),
        (ValueError("x" * 5000), f"The tool fail failed: ValueError: {'x' * 988} ..."),
    ],
    ids=["service", "any", "path", "url", "escapes", "long"],
)
def test_a_failing_tool_is_an_answer(failure: Exception, sentence: str) -> None:
    steps = run(ScriptedModel([calling(call("fail", x=1)), "Sorry."]), Failing(failure))
    assert answers(steps) == [sentence]
    assert of(CallDone, steps)[0].failure is failure
    assert steps[-1].reason == "stop"  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"y": 1}', '{"x": "a"}', "null"])
def test_arguments_of_no_use_are_an_answer(arguments: str) -> None:
    steps = run(ScriptedModel([calling(ScriptedCall("double", arguments)), "Sorry."]), Doubler())
    assert "failed: ValueError: Parameters" in answers(steps)[0]


def test_an_unknown_tool_is_an_answer_that_names_the_known() -> None:
    steps = run(ScriptedModel([calling(call("treble", x=1)), "Sorry."]), Doubler())
    assert answers(steps) == ["The call was not made: there is no tool of that name. Tools: double."]


@pytest.mark.parametrize(
    "name",
    [
        *("python<|channel|>commentary", "python<|channel|>json", "python<|constrain|>json", "pythonjson", "Python"),
        *("functions.python", "functions.python:0", "default_api.python", "default_api:python", " python ", "\npython"),
        *("code_interpreter", "execute_code", "tools.code_interpreter", "IPython", "assistant.functions.python"),
        *("run_code", "python_repl", "run_python_code", "python_tool"),
    ],
)
def test_the_name_of_a_call_is_read_without_what_templates_add_to_it(name: str) -> None:
    steps = run(ScriptedModel([calling(call(name, code="1")), "ok"]), Coder(), Doubler())
    assert [step.call.name for step in of(CallDone, steps)] == ["python"]
    assert of(CallBegun, steps)[0].name == "python"
    assert of(CallReady, steps)[0].code == "1"


@pytest.mark.parametrize("name", ["pythonic", "my.double2", "python_x", "", "<|channel|>", "execute"])
def test_a_name_that_no_declared_tool_is_meant_by_is_refused(name: str) -> None:
    steps = run(ScriptedModel([calling(call(name, code="1")), "ok"]), Coder(), Doubler())
    assert [done.failure.code for done in of(CallDone, steps)] == ["NotCalled"]


def test_a_function_of_the_client_is_never_taken_for_the_interpreter() -> None:
    model = ScriptedModel([calling(call("code_interpreter", code="1")), "ok"])
    loop = ToolLoop(model, [Coder()], [{"name": "code_interpreter", "parameters": SCHEMA}])
    steps = list(loop.run(HI))
    assert [pending.name for pending in steps[-1].pending] == ["code_interpreter"]


def test_two_interpreters_are_not_mistaken_for_each_other() -> None:
    other = Coder()
    other.name = "python2"
    steps = run(ScriptedModel([calling(call("execute_code", code="1")), "ok"]), Coder(), other)
    assert [done.failure.code for done in of(CallDone, steps)] == ["NotCalled"]


def test_the_models_failure_is_raised_and_its_reply_closed() -> None:
    with pytest.raises(ModelError):
        run(ScriptedModel([calling(call("double", x=1)), ScriptedReply(status=500)]), Doubler())


# -- calls written into the answer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapping", ["{}", "```json\n{}\n```", "<tool_call>{}</tool_call>", "<|python_tag|>{}"])
@pytest.mark.parametrize("piece", [0, 1])
def test_a_call_in_the_answer_is_made_and_not_shown(wrapping: str, piece: int) -> None:
    text = wrapping.replace("{}", json.dumps({"name": "double", "parameters": {"x": 4}}))
    model = ScriptedModel([ScriptedReply(text=text, piece=piece), "8"])
    steps = run(model, Doubler())
    assert answers(steps) == ['{\n    "twice": 8\n}']
    assert said(steps) == "8"
    assert model.asked[1].messages[1]["tool_calls"][0]["function"]["name"] == "double"


@pytest.mark.parametrize("blank", ["\n\n", " ", "\n", "\r\n\t"])
def test_blank_lines_before_a_call_are_no_answer(blank: str) -> None:
    model = ScriptedModel([calling(call("double", x=3), text=blank), "Six."])
    steps = run(model, Doubler())
    assert said(steps) == "Six."
    assert of(RoundDone, steps)[0].messages[0].text == ""


def test_words_before_a_call_are_shown_with_the_blank_lines_around_them() -> None:
    model = ScriptedModel([calling(call("double", x=3), text="\n\nLet me see.\n\n"), "Six."])
    assert said(run(model, Doubler())) == "\n\nLet me see.\n\nSix."


def test_words_before_a_tag_are_shown() -> None:
    text = 'I double it.\n<tool_call>{"name": "double", "arguments": {"x": 4}}</tool_call>'
    steps = run(ScriptedModel([ScriptedReply(text=text, piece=2), "8"]), Doubler())
    assert said(steps) == "I double it.\n8"
    assert len(answers(steps)) == 1


@pytest.mark.parametrize("text", ['{"name": "other", "arguments": {}}', '{"name": "double"}', '{"a": 1}'])
def test_other_json_is_an_answer(text: str) -> None:
    steps = run(ScriptedModel(ScriptedReply(text=text, piece=1)), Doubler())
    assert said(steps) == text
    assert answers(steps) == []


def test_without_tools_json_is_not_held_back() -> None:
    text = '{"name": "double", "arguments": {"x": 1}}'
    assert len(of(TextDelta, run(ScriptedModel(ScriptedReply(text=text, piece=1))))) == len(text)


def test_fenced_python_runs_where_that_is_asked_for() -> None:
    text = "I run:\n```python\na\n```\nand\n```python\nb\n```\n"
    tool = Coder()
    model = ScriptedModel([text, "Done."])
    tool_call_codes = of(CallReady, run(model, tool, python_blocks="python"))
    assert [ready.code for ready in tool_call_codes] == ["a", "b"]
    assert answers(run(ScriptedModel([text]), tool)) == []


# -- calls the caller makes -------------------------------------------------------------------------------------------


CLIENT = {"type": "function", "function": {"name": "ask_user", "parameters": {"type": "object", "properties": {}}}}


def test_a_callers_function_ends_the_turn_after_our_own_calls() -> None:
    model = ScriptedModel(calling(call("ask_user", "c1", q="?"), call("double", "c2", x=1)))
    steps = run(model, Doubler(), client_functions=[CLIENT])
    assert [each["function"]["name"] for each in model.asked[0].tools] == ["double", "ask_user"]
    assert answers(steps) == ['{\n    "twice": 2\n}']
    assert steps[-1] == Finished("pending", Usage(10, 5), (Call("c1", "ask_user", '{"q": "?"}'),))
    assert [message.call_id for message in of(RoundDone, steps)[0].messages] == ["c1", "c2", "c2"]


# -- ending early -----------------------------------------------------------------------------------------------------


def test_cancelled_while_code_runs() -> None:
    tool, cancel = Coder(waits=True), Cancel()
    steps = []
    model = ScriptedModel(calling(call("ask_user"), call("python", code="a\nb"), call("python", code="c")))
    for step in ToolLoop(model, [tool], [CLIENT]).run(HI, cancel):
        steps.append(step)
        if isinstance(step, CallOutput):
            threading.Timer(0.02, cancel.set).start()
    assert tool.ended.is_set()
    assert len(tool.codes) == 1
    assert answers(steps)[0].startswith("a")
    assert "ended" in answers(steps)[0]
    assert answers(steps)[1].startswith("The call was not made")
    assert isinstance(steps[-2], RoundDone)
    assert sorted(str(message.call_id) for message in steps[-2].messages[3:]) == ["call_0", "call_1", "call_2"]
    assert steps[-1] == Finished("cancelled", Usage(10, 5))


def test_cancelled_while_the_model_writes() -> None:
    with ScriptedServer({"m": ScriptedReply(text="abcd", piece=1, wait_midway=threading.Event())}) as server:
        cancel = Cancel()
        steps = []
        for step in ToolLoop(OpenAIModel("m", server.endpoint)).run(HI, cancel):
            steps.append(step)
            if isinstance(step, TextDelta) and not cancel.is_set():
                threading.Timer(0.02, cancel.set).start()
        assert server.hung_up.wait(60)
    assert steps[-1] == Finished("cancelled", Usage())
    assert of(RoundDone, steps)[0].messages[0].text == said(steps)


def test_a_cancel_after_the_whole_answer_changes_nothing() -> None:
    cancel = Cancel()
    steps = []
    for step in ToolLoop(ScriptedModel("hi")).run(HI, cancel):
        steps.append(step)
        if isinstance(step, RoundDone):
            cancel.set()
    assert steps[-1] == Finished("stop", Usage(10, 5))


def test_cancelled_before_it_begins_asks_nobody() -> None:
    cancel, model = Cancel(), ScriptedModel("hi")
    cancel.set()
    assert list(ToolLoop(model).run(HI, cancel)) == [Finished("cancelled", Usage())]
    assert model.asked == []


def test_a_deadline_ends_the_turn() -> None:
    tool = Coder(waits=True)
    steps = run(ScriptedModel(calling(call("python", code="a"))), tool, deadline=0.1)
    assert tool.ended.is_set()
    assert steps[-1].reason == "deadline"  # type: ignore[union-attr]


def test_a_deadline_ends_a_wait_for_the_model() -> None:
    gate = threading.Event()
    with ScriptedServer({"m": ScriptedReply(wait_before=gate)}) as server:
        model = OpenAIModel("m", server.endpoint)
        steps = list(ToolLoop(model, deadline=0.2).run(HI))
        gate.set()  # so that the server's thread ends, and the client's, which waits for its first byte
        model.close()
    assert steps[-1].reason == "deadline"  # type: ignore[union-attr]


def test_closing_the_turn_closes_what_is_open() -> None:
    model, tool = ScriptedModel([ScriptedReply(text="abc", piece=1)]), Coder()
    steps = ToolLoop(model).run(HI)
    next(steps)
    steps.close()
    assert model.closed == 1
    steps = ToolLoop(ScriptedModel(calling(call("python", code="a\nb"))), [tool]).run(HI)
    assert any(isinstance(step, CallOutput) for step in steps)
    steps.close()
    assert tool.ended.is_set()


def test_a_cancel_that_is_set_ends_what_begins_later() -> None:
    cancel, ended = Cancel(), []
    cancel.set()
    cancel.set()
    with cancel.ending(lambda: ended.append(1)):
        assert ended == [1]


# -- privacy ----------------------------------------------------------------------------------------------------------


def test_our_logs_hold_no_messages_code_or_outputs(caplog: pytest.LogCaptureFixture) -> None:
    canary = "CANARY"
    replies = [
        calling(call("python", code=canary), call("fail", x=canary), call(canary), text=canary, reasoning=canary),
        ScriptedReply(text=canary, status=200),
    ]
    with caplog.at_level(logging.DEBUG), ScriptedServer({"m": replies}) as server:
        model = OpenAIModel("m", server.endpoint)
        turn = ToolLoop(model, [Coder(), Failing(ValueError(canary))])
        steps = list(turn.run([Message(USER, canary)]))
        with pytest.raises(ModelError):
            list(turn.run([Message(USER, canary)]))
        model.close()
    ours = [record for record in caplog.records if record.name.startswith("agent_tools")]
    assert len(of(CallDone, steps)) == 3
    assert len(ours) >= 3
    assert all(canary not in record.getMessage() and record.exc_info is None for record in ours)


@pytest.mark.parametrize("is_text", [True, False])
def test_a_reply_with_more_calls_than_anyone_makes_is_the_models_failure(is_text: bool) -> None:
    call = {"name": "double", "arguments": {"x": 1}}
    calls = [ScriptedCall("double", {"x": 1})] * 129
    reply = ScriptedReply(text=json.dumps([call] * 129)) if is_text else ScriptedReply(calls=calls)
    with pytest.raises(ModelError, match="more than 128 calls"):
        list(ToolLoop(ScriptedModel([reply]), [Doubler()]).run(HI))
