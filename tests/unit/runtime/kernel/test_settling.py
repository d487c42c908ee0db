import tracemalloc

import pytest

from agent_tools.results.execution import Cleared, Display, Omitted, Output, Restarted, Stream
from agent_tools.runtime.kernel.settling import Settling
from tests.settled import settle

OUT, ERR = Stream("stdout", "a"), Stream("stderr", "e")
NOTE = Omitted("5 characters")
FRESH = Restarted("it died")


def display(text: str, display_id: str | None = None, is_update: bool = False) -> Display:
    return Display({"text/plain": text}, display_id, is_update)


@pytest.mark.parametrize(
    ("outputs", "settled"),
    [
        pytest.param([], (), id="nothing"),
        pytest.param([OUT, Stream("stdout", "b")], (Stream("stdout", "ab"),), id="consecutive texts join"),
        pytest.param([OUT, ERR, OUT], (OUT, ERR, OUT), id="stdout and stderr stay apart"),
        pytest.param([OUT, display("d"), OUT], (OUT, display("d"), OUT), id="a display separates texts"),
        pytest.param([OUT, NOTE, OUT], (OUT, NOTE, OUT), id="a note separates texts"),
        pytest.param([display("a"), display("a")], (display("a"), display("a")), id="equal displays both stay"),
    ],
)
def test_settle_joins_consecutive_stream_texts(outputs: list[Output], settled: tuple[Output, ...]) -> None:
    assert settle(outputs) == settled


def test_an_update_replaces_its_display_in_place() -> None:
    outputs = [display("old", "i"), OUT, display("new", "i", is_update=True)]
    assert settle(outputs) == (display("new", "i"), OUT)


def test_an_update_leaves_other_displays_alone() -> None:
    outputs = [display("a", "1"), display("b", "2"), display("c", "2", is_update=True)]
    assert settle(outputs) == (display("a", "1"), display("c", "2"))


def test_an_update_of_a_display_that_is_not_there_is_shown() -> None:
    (shown,) = settle([display("new", "i", is_update=True)])
    assert isinstance(shown, Display)
    assert shown.text == "new"


def test_an_update_is_compared_with_no_output_of_another_id() -> None:
    class Id(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Id.compared += 1
            return str.__eq__(self, other)

    shown = [display("old", Id(number)) for number in range(1000)]
    updates = [display("new", Id(number % 2000), is_update=True) for number in range(4000)]
    assert [output.text for output in settle([*shown, *updates])] == ["new"] * 2000
    assert Id.compared < 2 * len(updates)


def test_an_update_without_an_id_replaces_nothing() -> None:
    settled = settle([display("kept"), display("stray", None, is_update=True)])
    assert display("kept") in settled


@pytest.mark.parametrize(
    ("outputs", "settled"),
    [
        pytest.param([OUT, Cleared(), ERR], (ERR,), id="at once"),
        pytest.param([OUT, Cleared()], (), id="at once, nothing after"),
        pytest.param([OUT, Cleared(wait=True), ERR], (ERR,), id="waiting, then an output"),
        pytest.param([OUT, Cleared(wait=True)], (OUT,), id="waiting, nothing after"),
        pytest.param([OUT, Cleared(wait=True), Cleared(), ERR], (ERR,), id="waiting, then at once"),
        pytest.param([OUT, Cleared(wait=True), OUT], (OUT,), id="the cleared text is not joined"),
        pytest.param([OUT, Cleared(), ERR, Cleared(), OUT], (OUT,), id="twice"),
        pytest.param([FRESH, OUT, NOTE, Cleared(), ERR], (FRESH, NOTE, ERR), id="notes of ours stay"),
        pytest.param([Cleared(), OUT], (OUT,), id="nothing to clear"),
    ],
)
def test_clear_output_drops_what_came_before(outputs: list[Output], settled: tuple[Output, ...]) -> None:
    assert settle(outputs) == settled


def test_a_waiting_clear_is_not_set_off_by_a_note_of_ours() -> None:
    assert settle([OUT, Cleared(wait=True), NOTE]) == (OUT, NOTE)


def test_nothing_is_kept_of_what_is_cleared_or_replaced() -> None:
    def peak(rounds: int) -> int:
        tracemalloc.start()
        settling = Settling()
        for number in range(rounds):
            settling.add(Stream("stdout", f"{number:1000}"))
            settling.add(display(f"{number:1000}"))
            settling.add(Cleared(wait=number % 2 == 0))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(settling.outputs) <= 2
        return peak

    assert peak(20_000) < 3 * peak(200)


def test_an_update_after_a_clear_does_not_bring_the_display_back_twice() -> None:
    settled = settle([display("old", "i"), Cleared(), display("new", "i", is_update=True)])
    assert [output.text for output in settled if isinstance(output, Display)] == ["new"]
