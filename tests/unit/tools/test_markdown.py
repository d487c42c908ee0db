import pytest

from agent_tools.results.blocks import file_notes
from agent_tools.results.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    Omitted,
    Output,
    Picture,
    Restarted,
    Result,
    StagedFile,
    Stream,
    TimedOut,
)
from agent_tools.tools.markdown import markdown

PNG, JPEG = b"png bytes", b"jpeg bytes"
SAVED = (Picture("image/png", PNG, "/w/a.png"), Picture("image/jpeg", JPEG, "/w/b.jpg"))


def out(text: str) -> Stream:
    return Stream("stdout", text)


def err(text: str) -> Stream:
    return Stream("stderr", text)


def plain(text: str) -> dict[str, str]:
    return {"text/plain": text}


def shown(*outputs: Output) -> str:
    return markdown(Execution(outputs, saved=SAVED))


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        pytest.param([out("4\n")], "stdout:\n\n```\n4\n\n```", id="print"),
        pytest.param([err("w\n")], "stderr:\n\n```\nw\n\n```", id="stderr"),
        pytest.param([Result(plain("4"))], "execute_result:\n\n```\n4\n```", id="result"),
        pytest.param([Display(plain("<HTML object>"))], "display_data:\n\n```\n<HTML object>\n```", id="display"),
        pytest.param(
            [Error("E", "v", "Traceback\nE: v")], "error:\n\n```\nTraceback\nE: v\n```", id="error with a traceback"
        ),
        pytest.param([Error("E", "v", "")], "error:\n\n```\nE: v\n```", id="error without a traceback"),
        pytest.param(
            [Omitted("3 displayed values")], "note:\n\n```\n[... 3 displayed values left out ...]\n```", id="note"
        ),
        pytest.param([], "Finished execution.", id="nothing"),
        pytest.param([out("")], "Finished execution.", id="empty text"),
        pytest.param([Cleared()], "Finished execution.", id="only a clear"),
        pytest.param([Display({"text/html": "<b>"})], "Finished execution.", id="only HTML"),
    ],
)
def test_exact_bytes_of_one_output(outputs: list[Output], text: str) -> None:
    assert shown(*outputs) == text


def test_blocks_come_in_order_with_an_empty_line_between() -> None:
    assert shown(out("a\n"), err("b\n"), Result(plain("4"))) == (
        "stdout:\n\n```\na\n\n```\n\nstderr:\n\n```\nb\n\n```\n\nexecute_result:\n\n```\n4\n```"
    )


def test_consecutive_texts_of_one_stream_are_one_block() -> None:
    assert shown(out("a\n"), out("b\n")) == "stdout:\n\n```\na\nb\n\n```"


def test_alternating_streams_are_separate_blocks() -> None:
    assert shown(out("a"), err("b"), out("c")).count(":\n\n```\n") == 3


@pytest.mark.parametrize("state_kept", [True, False])
def test_a_time_out_is_an_error_that_starts_with_the_known_sentence(state_kept: bool) -> None:
    text = shown(out("before"), TimedOut(5, state_kept))
    assert text.startswith("stdout:\n\n```\nbefore\n```\n\nerror:\n\n```\n")
    body = text.split("error:\n\n```\n")[1]
    assert body.startswith("Timeout: Code execution exceeded the time limit.")


def test_a_death_is_an_error() -> None:
    assert shown(Died("it exited")).startswith("error:\n\n```\nKernelDied: it exited.")


def test_a_restart_is_a_note_before_the_outputs() -> None:
    text = shown(Restarted("it exited"), out("a"))
    assert text.startswith("note:\n\n```\nThe kernel was restarted")
    assert text.endswith("stdout:\n\n```\na\n```")


def test_figures_are_numbered_in_order() -> None:
    assert shown(Display({"image/png": PNG}), Display({"image/jpeg": JPEG})) == (
        "![fig-001](/w/a.png)\n\n![fig-002](/w/b.jpg)"
    )


def test_the_same_picture_twice_is_one_figure() -> None:
    assert shown(Display({"image/png": PNG}), Display({"image/png": PNG})) == "![fig-001](/w/a.png)"


def test_the_text_form_of_a_displayed_picture_is_left_out() -> None:
    assert shown(Display({"image/png": PNG, **plain("<Figure>")})) == "![fig-001](/w/a.png)"


def test_a_result_with_a_picture_shows_both() -> None:
    assert shown(Result({"image/png": PNG, **plain("<Figure>")})) == (
        "![fig-001](/w/a.png)\n\nexecute_result:\n\n```\n<Figure>\n```"
    )


def test_a_picture_without_a_url_is_noted_and_keeps_its_number() -> None:
    text = shown(Display({"image/png": b"unsaved"}), Display({"image/png": PNG}))
    assert text == "note:\n\n```\nfig-001 could not be saved.\n```\n\n![fig-002](/w/a.png)"


def test_a_figure_separates_the_text_around_it() -> None:
    assert shown(out("a"), Display({"image/png": PNG}), out("b")) == (
        "stdout:\n\n```\na\n```\n\n![fig-001](/w/a.png)\n\nstdout:\n\n```\nb\n```"
    )


def test_what_is_missing_inside_a_stream_is_noted_inside_its_block() -> None:
    assert shown(out("a"), Omitted("5 characters"), out("b")) == (
        "stdout:\n\n```\na\n[... 5 characters left out ...]\nb\n```"
    )


@pytest.mark.parametrize("ticks", [3, 4, 10])
@pytest.mark.parametrize(
    "kind",
    [out, lambda text: Result(plain(text)), lambda text: Error("E", "v", text)],
    ids=["stream", "result", "error"],
)
def test_a_fence_is_longer_than_the_backticks_inside(kind: type[Stream], ticks: int) -> None:
    inner = "`" * ticks
    assert shown(kind(f"a\n{inner}\n# b")).endswith(f":\n\n{inner}`\na\n{inner}\n# b\n{inner}`")


def test_a_progress_bar_is_shown_in_its_last_state_even_across_messages() -> None:
    assert shown(out(" 10%\r"), out(" 50%\r"), out("100%\n")) == "stdout:\n\n```\n100%\n\n```"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        pytest.param("http://h/a.png", "http://h/a.png", id="plain"),
        pytest.param("/my dir/a.png", "/my%20dir/a.png", id="space"),
        pytest.param("/w) [x](y/a.png", "/w%29%20[x]%28y/a.png", id="parentheses"),
        pytest.param("/w\n# x/a.png", "/w%0A#%20x/a.png", id="newline"),
        pytest.param("/w\t\r/a.png", "/w%09%0D/a.png", id="tab and return"),
        pytest.param("/w/中文.png", "/w/中文.png", id="other scripts"),
    ],
)
def test_a_link_target_cannot_end_the_link(url: str, target: str) -> None:
    execution = Execution((Display({"image/png": PNG}),), saved=(Picture("image/png", PNG, url),))
    assert markdown(execution) == f"![fig-001]({target})"


def test_files_are_only_noted_when_the_reader_must_know() -> None:
    assert file_notes([StagedFile("/data/a.csv", "a.csv")]) == ""
    assert file_notes([]) == ""


def test_a_note_of_a_file_stays_on_its_line() -> None:
    files = [StagedFile("/a\nb\u202e\U000e0061", None, error="no\nsuch\u2028file")]
    assert file_notes(files) == ("files:\n\n```\n/a\\nb\\u202e\\U000e0061 is not available: no\\nsuch\\u2028file\n```")


def test_files_that_were_renamed_or_could_not_be_had_are_noted() -> None:
    files = [
        StagedFile("/a/x.csv", "x.csv"),
        StagedFile("/b/x.csv", "x-1.csv", is_renamed=True),
        StagedFile("http://h/y", None, error="404 Not Found"),
    ]
    assert file_notes(files) == (
        "files:\n\n```\n/b/x.csv is available as x-1.csv\nhttp://h/y is not available: 404 Not Found\n```"
    )


def test_file_notes_come_before_the_outputs() -> None:
    files = (StagedFile("`````", None, error="no such file"),)
    text = markdown(Execution((out("a"),), files=files))
    assert text.startswith("files:\n\n``````\n`````")
    assert text.endswith("\n\nstdout:\n\n```\na\n```")


def test_file_notes_come_before_the_word_that_nothing_was_shown() -> None:
    text = markdown(Execution(files=(StagedFile("f", None, error="gone"),)))
    assert text == "files:\n\n```\nf is not available: gone\n```\n\nFinished execution."
