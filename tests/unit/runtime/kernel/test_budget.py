import json
import re
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.limits import Limits
from agent_tools.results.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
)
from agent_tools.runtime.kernel.output_limits import MAX_CALL_BYTES, MAX_DISPLAYS, MAX_UPDATES, limited
from tests.settled import settle

TEN = Limits(max_text_chars=10)
HALF = "x" * (MAX_CALL_BYTES // 2)


def out(text: str) -> Stream:
    return Stream("stdout", text)


def err(text: str) -> Stream:
    return Stream("stderr", text)


def image(number: int) -> Display:
    return Display({"image/png": b"%d" % number, "text/plain": "<Figure>"})


def within(outputs: Iterable[Output], limits: Limits = TEN) -> list[Output]:
    return list(limited(outputs, limits))


def kept_chars(outputs: Iterable[Output]) -> int:
    return sum(len(output.text) for output in outputs if isinstance(output, Stream))


def omitted_chars(outputs: Iterable[Output]) -> int:
    notes = [re.fullmatch(r"([\d,]+) characters", output.what) for output in outputs if isinstance(output, Omitted)]
    return sum(int(note[1].replace(",", "")) for note in notes if note)


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        pytest.param(["0123456789"], [out("01234"), out("56789")], id="exactly the limit"),
        pytest.param(["01234"], [out("01234")], id="only the head"),
        pytest.param(["0123456789a"], [out("01234"), Omitted("1 characters"), out("6789a")], id="one over"),
        pytest.param(["x" * 5000], [out("xxxxx"), Omitted("4,990 characters"), out("xxxxx")], id="far over"),
        pytest.param(
            ["abc", "defgh", "ijklm"], [out("abc"), out("de"), Omitted("3 characters"), out("ijklm")], id="in pieces"
        ),
        pytest.param(["", "a", ""], [out("a")], id="empty texts"),
    ],
)
def test_the_first_and_the_last_half_of_a_text_are_kept(texts: list[str], kept: list[Output]) -> None:
    assert within(out(text) for text in texts) == kept


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        pytest.param(1, [out("0"), Omitted("9 characters")], id="one"),
        pytest.param(3, [out("01"), Omitted("7 characters"), out("9")], id="odd: the head has one more"),
    ],
)
def test_small_limits(limit: int, kept: list[Output]) -> None:
    assert within([out("0123456789")], Limits(max_text_chars=limit)) == kept


def test_text_passes_at_once_while_there_is_room_for_it() -> None:
    def printing() -> Iterator[Output]:
        yield out("a")
        pytest.fail("the second output was asked for before the first was passed on")

    assert next(limited(printing(), TEN)) == out("a")


def test_stdout_and_stderr_share_the_limit_and_keep_their_order() -> None:
    kept = within([out("abc"), err("def"), out("ghi"), err("jkl"), out("mno")])
    assert kept == [out("abc"), err("de"), Omitted("5 characters"), err("kl"), out("mno")]


@pytest.mark.parametrize(
    "ending",
    [
        Error("E", "v", "t"),
        TimedOut(5, True),
        Died("it exited"),
        Restarted("it exited"),
        Omitted("a picture"),
        Cleared(),
    ],
    ids=lambda ending: type(ending).__name__,
)
def test_held_back_text_comes_before_what_followed_it(ending: Output) -> None:
    assert within([out("0123456789ab"), ending]) == [out("01234"), Omitted("2 characters"), out("789ab"), ending]


@pytest.mark.parametrize("kind", [Result, Display])
def test_held_back_text_comes_before_a_display(kind: type[Result] | type[Display]) -> None:
    shown = kind({"text/plain": "4"})
    assert within([out("0123456789"), shown]) == [out("01234"), out("56789"), shown]


def test_text_after_held_back_text_came_out_stays_within_the_limit() -> None:
    shown = Display({"text/plain": "4"})
    kept = within([out("01234567"), shown, out("abcdef")])
    assert kept == [out("01234"), out("567"), shown, Omitted("4 characters"), out("ef")]


PRINTS = st.builds(Stream, st.sampled_from(["stdout", "stderr"]), st.text("ab", max_size=30))
OTHERS = st.sampled_from([Result({"text/plain": "4"}), image(1), Error("E", "v", ""), Cleared()])


@given(st.lists(PRINTS | OTHERS, max_size=30), st.integers(1, 40))
def test_kept_text_is_bounded_and_every_missing_character_is_counted(outputs: list[Output], limit: int) -> None:
    kept = within(outputs, Limits(max_text_chars=limit))
    assert kept_chars(kept) <= limit
    assert kept_chars(kept) + omitted_chars(kept) == kept_chars(outputs)


@given(st.lists(PRINTS | OTHERS, max_size=30))
def test_outputs_within_the_limits_are_not_changed(outputs: list[Output]) -> None:
    printed = [output for output in outputs if output not in (out(""), err(""))]
    assert settle(within(printed, Limits())) == settle(printed)


def test_the_first_images_are_kept_and_the_others_counted() -> None:
    kept = within([image(number) for number in range(5)], Limits(max_images=2))
    assert kept == [image(0), image(1), Omitted("3 pictures after the first 2")]


def test_values_without_a_picture_still_pass_after_the_last_image() -> None:
    value = Result({"text/plain": "4"})
    assert within([image(0), image(1), value], Limits(max_images=1)) == [
        image(0),
        value,
        Omitted("1 pictures after the first 1"),
    ]


def test_the_first_displays_are_kept_and_the_others_counted() -> None:
    displays = [Display({"text/plain": str(number)}) for number in range(MAX_DISPLAYS + 3)]
    assert within(displays) == [*displays[:MAX_DISPLAYS], Omitted("3 displayed values")]


def test_the_first_updates_are_kept_and_the_others_counted() -> None:
    updates = [Display({"text/plain": str(number)}, "id", is_update=True) for number in range(MAX_UPDATES + 3)]
    assert within(updates) == [*updates[:MAX_UPDATES], Omitted("3 displayed values")]


def test_a_display_over_the_bytes_left_is_dropped_and_a_smaller_one_passes() -> None:
    large, small = Display({"text/html": HALF + "x"}), Display({"text/html": HALF[1:]})
    kept = within([large, large, small])
    assert kept == [large, small, Omitted("1 displayed values")]


def test_the_bytes_of_all_representations_count() -> None:
    both = Display({"image/png": HALF.encode(), "text/plain": HALF + "x"})
    assert within([both]) == [Omitted("1 displayed values")]


def test_json_counts_as_the_bytes_it_is() -> None:
    table = Display({"application/json": [HALF[: MAX_CALL_BYTES // 50]] * 10})
    kept = within([table] * 10)
    size = sum(len(json.dumps(output.data)) for output in kept if isinstance(output, Display))
    assert MAX_CALL_BYTES / 2 < size <= MAX_CALL_BYTES


def test_notes_come_last() -> None:
    kept = within([image(0), image(1), out("x" * 11)], Limits(max_text_chars=10, max_images=1))
    assert kept[-1] == Omitted("1 pictures after the first 1")


def test_notes_the_code_can_cause_are_bounded() -> None:
    refused = [Omitted("a picture (not base64 text)")] * 5000
    assert len(within(refused)) <= MAX_DISPLAYS + 10


def test_printing_and_clearing_for_ever_leaves_few_outputs() -> None:
    progress: list[Output] = [out("x" * 20), Cleared(wait=True)] * 1000
    assert len(settle(within(progress))) <= 10


@pytest.mark.parametrize("clear", [Cleared(), Cleared(wait=True)], ids=["at once", "waiting"])
def test_clearing_what_is_cleared_passes_nothing_on(clear: Cleared) -> None:
    assert within([out("a"), *[clear] * 1000, out("b")]) == [out("a"), clear, out("b")]


def test_clearing_at_once_after_a_waiting_clear_is_passed_on() -> None:
    clears = [Cleared(wait=True), Cleared(), Cleared(wait=True), Cleared()]
    assert within(clears) == [Cleared(wait=True), Cleared()]


def test_clearing_for_ever_leaves_few_outputs() -> None:
    value = Display({"text/plain": "4"})
    endless: list[Output] = [value, Cleared(), out("x" * 20), Cleared(wait=True)] * 1000
    kept = within(endless, Limits(max_text_chars=100))
    assert len(kept) < 2 * (MAX_UPDATES + MAX_DISPLAYS)


def test_a_figure_that_is_drawn_anew_all_the_time_ends_with_the_last_one() -> None:
    ticks = range(100)
    cleared = [each for tick in ticks for each in (Cleared(wait=True), image(tick), out(f"{tick}"))]
    assert settle(within(cleared, Limits(max_images=5))) == (image(99), out("99"))
    updated = [
        Display({"image/png": b"%d" % tick, "text/plain": "<Figure>"}, "plot", is_update=tick > 0) for tick in ticks
    ]
    (last,) = settle(within(updated, Limits(max_images=5)))
    assert isinstance(last, Display)
    assert last.data["image/png"] == b"99"


def test_updates_bring_no_more_pictures_than_there_may_be() -> None:
    plain = [Display({"text/plain": "-"}, f"{number}") for number in range(20)]
    drawn = [Display({"image/png": b"%d" % number}, f"{number}", is_update=True) for number in range(20)]
    kept = settle(within([*plain, *drawn], Limits(max_images=5)))
    assert sum(isinstance(each, Display) and "image/png" in each.data for each in kept) == 5


@given(st.lists(PRINTS | OTHERS | st.just(Cleared(wait=True)), max_size=30))
def test_leaving_out_clears_changes_nothing_that_is_settled(outputs: list[Output]) -> None:
    printed = [output for output in outputs if output not in (out(""), err(""))]
    assert settle(within(printed, Limits())) == settle(printed)


def test_nothing_gives_nothing() -> None:
    assert within([]) == []
