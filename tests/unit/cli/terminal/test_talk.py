"""A conversation: what it shows on a terminal, and what it remembers."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from agent_tools.agents import Assistant
from agent_tools.cli.chat import Talk
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def press_ctrl_c() -> str:
    """Interrupt this process, as a terminal would."""
    os.kill(os.getpid(), signal.SIGINT)
    return "pressed"


def calling(name: str, **arguments: Any) -> ScriptedReply:
    return ScriptedReply("I see.", calls=[ScriptedCall(name, arguments)])


def test_the_answer_goes_to_stdout_and_all_else_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Talk(Assistant([double], ScriptedModel([calling("double", x=21), "It is 42."])))
    assert talk.ask("Twice 21?")
    out, err = capsys.readouterr()
    assert out == "I see.\nIt is 42.\n"
    assert err.split("\n")[:3] == ["── double", '{"x": 21}', "42"]


def test_reasoning_ends_its_line_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    called = ScriptedReply(reasoning="I double it.", calls=[ScriptedCall("double", {"x": 21})])
    last = ScriptedReply("It is 42.", reasoning="Good.", piece=2)
    assert Talk(Assistant([double], ScriptedModel([called, last]))).ask("Twice 21?")
    out, err = capsys.readouterr()
    assert out == "It is 42.\n"
    assert err.split("\n") == ["I double it.", "── double", '{"x": 21}', "42", "Good.", ""]


def test_a_conversation_remembers_and_brings_its_files_once() -> None:
    model = ScriptedModel([calling("double", x=1), "2.", "Bye."])
    talk = Talk(Assistant([double], model), files=["data.csv"])
    talk.ask("Double")
    talk.ask("Thanks")
    told = [message["content"] for message in model.asked[2].messages]
    assert told == ["(Uploaded [file](data.csv)) Double", "I see.", "2", "2.", "Thanks"]


def test_a_question_that_failed_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel([ScriptedReply(status=500, error="too busy"), "Hello."])
    talk = Talk(Assistant(llm=model))
    assert not talk.ask("Hi")
    assert "too busy" in capsys.readouterr().err
    assert talk.ask("Hi again")
    assert [message["content"] for message in model.asked[1].messages] == ["Hi again"]


def test_ctrl_c_ends_the_turn_and_not_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    stopped = ScriptedModel(lambda request: calling("press_ctrl_c"))  # calls without end, unless it is stopped
    assert not Talk(Assistant([press_ctrl_c], stopped, max_rounds=10_000)).ask("Go")
    assert "Stopped." in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_model_says_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Talk(Assistant(llm=ScriptedModel("\x1b[2Jred\x07"))).ask("Hi")
    assert capsys.readouterr().out == "red\n"


def test_on_a_terminal_the_answer_is_rendered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    talk = Talk(Assistant(llm=ScriptedModel(["It is **105**.\n\n- one\n- two"])))
    assert talk.ask("How much?")
    out = capsys.readouterr().out
    assert "105" in out
    assert "**" not in out
    assert " • " in out
