from typing import Any

import pytest

from agent_tools.results.execution import (
    Changes,
    Died,
    Display,
    Error,
    Execution,
    FileChange,
    Omitted,
    Output,
    Picture,
    Restarted,
    Result,
    StagedFile,
    Stream,
    TimedOut,
    pictures_of,
)
from agent_tools.results.variables import Variables

OUT, ERR = Stream("stdout", "a"), Stream("stderr", "e")
NOTE = Omitted("5 characters")
FRESH = Restarted("it died")
FAILED = Error("ValueError", "bad", "Traceback: bad")


def test_an_empty_execution_is_ok() -> None:
    execution = Execution()
    assert execution.ok
    assert (execution.stdout, execution.stderr) == ("", "")
    assert execution.result is None
    assert execution.error is None
    assert execution.images == ()


@pytest.mark.parametrize(
    "ending", [FAILED, TimedOut(5, True), Died("it exited")], ids=lambda ending: type(ending).__name__
)
def test_an_execution_that_was_ended_is_not_ok(ending: Output) -> None:
    execution = Execution((OUT, ending))
    assert not execution.ok
    assert execution.error is ending


@pytest.mark.parametrize("note", [NOTE, FRESH], ids=lambda note: type(note).__name__)
def test_notes_are_no_errors(note: Output) -> None:
    assert Execution((note,)).ok


def test_an_execution_gives_its_streams_and_result() -> None:
    result = Result({"text/plain": "4"})
    execution = Execution((OUT, ERR, Display({"text/plain": "d"}), Stream("stdout", "b"), result))
    assert execution.stdout == "ab"
    assert execution.stderr == "e"
    assert execution.result is result


def test_what_is_left_out_is_named_in_the_stream_that_it_follows() -> None:
    cut = Omitted("5 characters", is_text=True)
    outputs = (OUT, cut, OUT, ERR, cut)
    left_out = "\n[... 5 characters left out ...]\n"
    assert Execution(outputs).stdout == f"a{left_out}a"
    assert Execution(outputs).stderr == f"e{left_out}"
    assert Execution((cut, ERR)).stdout == left_out
    assert Execution(outputs).notes == ()


def test_a_kernel_that_had_ended_and_a_picture_that_is_missing_are_notes() -> None:
    execution = Execution((FRESH, OUT, Omitted("a picture")))
    assert execution.notes == (FRESH.text, "[... a picture left out ...]")
    assert execution.stdout == "a"


def test_what_was_shown_without_a_picture_is_text_beside_the_result() -> None:
    chart = Display({"application/vnd.plotly.v1+json": {}, "text/plain": "[A chart]"})
    picture = Display({"image/png": b"1", "text/plain": "<Figure>"})
    assert Execution((chart, picture, Result({"text/plain": "1"}))).shown == "[A chart]\n1"
    assert Execution((picture, Stream("stdout", "x"))).shown == ""


def test_images_are_given_once_in_order() -> None:
    first, second = Display({"image/png": b"1"}), Result({"image/jpeg": b"2"})
    assert Execution((first, OUT, second, first)).images == (b"1", b"2")


@pytest.mark.parametrize(
    ("output", "pictures"),
    [
        pytest.param(Display({"image/png": b"p"}), (Picture("image/png", b"p"),), id="PNG"),
        pytest.param(Result({"image/jpeg": b"j"}), (Picture("image/jpeg", b"j"),), id="JPEG"),
        pytest.param(
            Display({"image/jpeg": b"j", "image/png": b"p"}), (Picture("image/png", b"p"),), id="PNG before JPEG"
        ),
        pytest.param(
            Display({"image/png": "text", "image/jpeg": b"j"}), (Picture("image/jpeg", b"j"),), id="text is no picture"
        ),
        pytest.param(Display({"image/svg+xml": "<svg/>"}), (), id="SVG is text"),
        pytest.param(Display({}), (), id="empty bundle"),
        pytest.param(OUT, (), id="stream"),
        pytest.param(FAILED, (), id="error"),
    ],
)
def test_pictures_of_an_output(output: Output, pictures: tuple[Picture, ...]) -> None:
    assert pictures_of(output) == pictures


@pytest.mark.parametrize(
    ("mime", "suffix", "url"),
    [
        ("image/png", ".png", "data:image/png;base64,AP8="),
        ("image/jpeg", ".jpg", "data:image/jpeg;base64,AP8="),
    ],
)
def test_a_picture_knows_its_file_ending_and_its_url(mime: Any, suffix: str, url: str) -> None:
    picture = Picture(mime, b"\x00\xff")
    assert (picture.suffix, picture.data_url) == (suffix, url)


def test_a_saved_picture_is_found_by_the_output_that_shows_it() -> None:
    first, second, third = (Display({"image/png": data}) for data in (b"1", b"2", b"3"))
    saved = (Picture("image/png", b"1", "/w/1.png"), Picture("image/png", b"2"))
    execution = Execution((first, OUT, second, first), saved=saved)
    assert execution.figures == ("/w/1.png", "")
    assert execution.images == (b"1", b"2")
    paths = [[each.path for each in execution.pictures_in(output)] for output in (*execution.outputs, third)]
    assert paths == [["/w/1.png"], [], [""], ["/w/1.png"], [""]]


def test_an_execution_that_nothing_saved_has_pictures_and_no_figures() -> None:
    execution = Execution((Display({"image/jpeg": b"1"}),))
    assert execution.pictures == (Picture("image/jpeg", b"1"),)
    assert execution.figures == ()


@pytest.mark.parametrize("kind", [Result, Display])
def test_the_text_of_a_value_is_its_plain_form(kind: type[Result] | type[Display]) -> None:
    assert kind({"text/plain": "4", "text/html": "<b>4</b>"}).text == "4"
    assert kind({"text/html": "<b>4</b>"}).text == ""


def test_the_text_of_an_error_is_its_traceback_or_its_name_and_value() -> None:
    assert FAILED.text == "Traceback: bad"
    assert Error("ValueError", "bad", "").text == "ValueError: bad"


def test_a_time_out_says_that_variables_are_kept() -> None:
    text = TimedOut(2.5, state_kept=True).text
    assert text.startswith("Timeout: Code execution exceeded the time limit.\n")
    assert "2.5 s" in text
    assert "variables are kept" in text


def test_a_time_out_says_that_variables_are_lost_and_files_kept() -> None:
    text = TimedOut(30, state_kept=False).text
    assert "30 s" in text
    assert "variables are lost, files are kept" in text


def test_a_time_out_ends_with_where_it_struck() -> None:
    assert TimedOut(5, state_kept=True, where="line 3").text.endswith("\n\nline 3")


def test_a_death_says_why_and_what_is_lost() -> None:
    assert Died("it ran out of memory").text == (
        "KernelDied: it ran out of memory. Variables are lost, files are kept; the next call gets a fresh kernel."
    )


def test_a_restart_says_why_and_what_is_lost() -> None:
    assert Restarted("it exited").text == (
        "The kernel was restarted before this code ran (it exited); earlier variables are lost."
    )


BEFORE = Variables(kept=True, undone=1)
EARLIER = Variables(kept=True, undone=3, hindrance="threads")


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (Died("it crashed", variables=BEFORE), "KernelDied: it crashed; {before}, files are kept."),
        (Died("it crashed", variables=EARLIER), "KernelDied: it crashed; {earlier}, files are kept."),
        (
            Died("it crashed", variables=Variables(hindrance="memory")),
            "KernelDied: it crashed. Variables are lost (there was no room for a checkpoint), files are kept; the next "
            "call gets a fresh kernel.",
        ),
        (
            TimedOut(5, state_kept=True, variables=BEFORE),
            "Timeout: Code execution exceeded the time limit.\nThe limit was 5 s. The code did not stop when "
            "interrupted, so its kernel was ended; {before}, files are kept.",
        ),
        (
            Restarted("it crashed", variables=Variables(kept=True)),
            "The kernel was restarted before this code ran (it crashed); variables are kept.",
        ),
        (
            Restarted("it crashed", variables=EARLIER),
            "The kernel was restarted before this code ran (it crashed); {earlier}.",
        ),
        (Variables(kept=True), "variables are as this code left them"),
    ],
)
def test_a_clause_says_what_became_of_the_variables(output: Died | TimedOut | Restarted | Variables, text: str) -> None:
    why = "no checkpoint is taken while threads of the code are running"
    earlier = f"variables are as they were before the last 3 calls ({why})"
    assert output.text == text.format(before="variables are as they were before this code", earlier=earlier)


def test_an_omission_says_what_is_missing() -> None:
    assert Omitted("1,000 characters").text == "[... 1,000 characters left out ...]"


def test_an_execution_is_shown_in_one_line() -> None:
    assert repr(Execution(duration=0.25)) == "Execution(ok, 0.25 s)"
    many = (OUT, ERR, Display({"image/png": b"x" * 20_000}), Result({"text/plain": "a\n" * 90}))
    shown = repr(Execution(many, changed=Changes([FileChange("f", 1, is_new=True)]), duration=1.0))
    assert shown.startswith("Execution(ok, result a\\na\\n")
    assert shown.endswith("..., 2 printed characters, 1 picture, 1 changed file, 1 s)")
    assert len(shown) < 200
    assert repr(Execution((FAILED,))) == "Execution(ValueError: bad, 0 s)"
    assert "Timeout: Code execution exceeded" in repr(Execution((TimedOut(1, state_kept=True),)))
    assert repr(Execution(files=(StagedFile("a", None),))) == "Execution(a file is missing, 0 s)"
    assert repr(many[2]) == "Display({'image/png': 19.5 KiB})"
    assert repr(Result({"text/plain": "21"})) == "Result({'text/plain': '21'})"


def test_a_notebook_shows_text_and_pictures_and_runs_nothing_of_the_codes() -> None:
    drawn = Display({"image/png": b"png", "text/plain": "<Figure>"})
    execution = Execution((Stream("stdout", "<script>"), drawn, Result({"text/html": "<b>", "text/plain": "21"})))
    bundle = execution._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == repr(execution)
    assert '<img src="data:image/png;base64,cG5n">' in bundle["text/html"]
    for told in ("&lt;script&gt;", "21"):
        assert told in bundle["text/html"]
    assert "<script>" not in bundle["text/html"]
