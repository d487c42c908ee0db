"""PID 1's side of checkpoints: whatever the kernel, its copies and liars say to it."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.checkpoints.datagrams import MAX_BYTES, receive
from agent_tools.guest.checkpoints.keeper import MAX_COPIES, MAX_MARKED, MAX_WORDS_AT_ONCE, Keeper
from agent_tools.guest.checkpoints.taking import FIRST, LATEST, PAUSE, Pace


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.drop()
    made.close()


Leave = Callable[[socket.socket, int], socket.socket]


@pytest.fixture
def leave(keeper: Keeper) -> Iterator[Leave]:
    """Leave a copy, as one does; gives what it waits on."""
    with ExitStack() as undo:

        def leave(kernel: socket.socket, run: int) -> socket.socket:
            number, descriptors, _, _ = socket.recv_fds(kernel, MAX_BYTES, 1)
            line = socket.socket(fileno=descriptors[0])
            kernel.send(b"copy %d %s" % (run, number))
            keeper.hear()
            line.settimeout(0.5)
            return undo.enter_context(line)

        yield leave


def woken(line: socket.socket) -> bytes | None:
    """What PID 1 said to a copy: b'' for its end, None for nothing."""
    try:
        return line.recv(100)
    except TimeoutError:
        return None


def test_the_newest_copy_is_woken_that_knows_of_no_later_run(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel:
        lines = [leave(kernel, run) for run in (1, 2, 3)]
        assert woken(lines[0]) == b""
        assert len(keeper.copies) == MAX_COPIES
        assert keeper.pids == {os.getpid()}
        kernel.send(b"skipped threads")
        keeper.hear()
        assert not keeper.wake(1, [], is_exact=False)
        lines = [leave(kernel, run) for run in (4, 5)]
        kernel.send(b"skipped threads")
        keeper.hear()
        assert keeper.wake(9, [kernel.fileno()], is_exact=False)
        assert woken(lines[1]) == b"wake threads"
        assert keeper.wake(4, [], is_exact=True)
        assert [woken(line) for line in lines] == [b"wake threads", b""]  # 5 has not happened
        assert not keeper.wake(5, [], is_exact=True)


class GvisorSocket:
    """A socket whose other end closed with words unread, under gVisor: the last word, then the error at every read."""

    def __init__(self) -> None:
        self._words = [b"skipped time"]

    def recvmsg(self, *_: int) -> tuple[bytes, list[object], int, None]:
        if not self._words:
            raise ConnectionResetError
        return self._words.pop(), [], 0, None


def test_an_end_with_unread_words_is_the_end_where_it_is_reported_at_every_read() -> None:
    line = cast("Any", GvisorSocket())
    assert [receive(line) for _ in range(3)] == [(b"skipped time", 0), None, None]


def test_a_copy_that_hung_up_makes_way_for_an_earlier_one(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel:
        early, late = leave(kernel, 1), leave(kernel, 2)
        late.close()
        assert keeper.wake(9, [], is_exact=False)
        assert woken(early) == b"wake "


def test_the_end_of_a_copy_is_a_loss_from_the_moment_it_is_woken_until_its_fork_is_awake(
    keeper: Keeper, leave: Leave
) -> None:
    with keeper.connect() as kernel:
        leave(kernel, 1)
        assert keeper.wake(1, [], is_exact=False)
        assert keeper.forget(os.getpid())
        assert not keeper.forget(os.getpid())
        leave(kernel, 2)
        assert keeper.wake(2, [], is_exact=False)
        kernel.send(b"awake")
        assert keeper.hear() == os.getpid()
        assert not keeper.forget(os.getpid())


def test_marked_copies_stay_and_of_many_the_oldest_goes(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel:
        lines = {}
        for run in range(1, MAX_MARKED + 3):
            lines[run] = leave(kernel, run)
            assert keeper.mark(run)
        assert [run for run in lines if not keeper.has(run)] == [1, 2]
        assert woken(lines[2]) == b""
        assert not keeper.mark(99)
        assert keeper.wake(5, [], is_exact=True)
        assert [copy.run for copy in keeper.copies] == [5]
        assert keeper.wake(9, [], is_exact=True)
        assert len(keeper.ranked()) == MAX_MARKED
        keeper.drop()
        assert keeper.pids == set()
        assert woken(lines[9]) == b"wake "


def test_a_line_is_taken_once_and_only_if_it_was_sent(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel:
        leave(kernel, 1)
        for word in (b"copy 2 1", b"copy 2 99", b"copy 2", b"copy 2 -1", b"copy 2 2 2"):
            kernel.send(word)
        keeper.hear()
        assert [copy.run for copy in keeper.copies] == [1]
        leave(kernel, 3)
        assert [copy.run for copy in keeper.copies] == [1, 3]


def test_a_line_of_which_no_copy_came_about_is_replaced(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel:
        kernel.setblocking(False)
        _, descriptors, _, _ = socket.recv_fds(kernel, MAX_BYTES, 1)
        os.close(descriptors[0])
        kernel.send(b"skipped threads")
        keeper.hear()
        leave(kernel, 1)
        assert [copy.run for copy in keeper.copies] == [1]


def test_sending_lines_gives_pid_1_no_name_that_code_could_connect_to(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel:
        for run in range(1, 4):
            leave(kernel, run)
            assert not kernel.getpeername()


def test_nothing_can_be_sent_to_pid_1_over_a_line(keeper: Keeper, leave: Leave) -> None:
    with keeper.connect() as kernel, pytest.raises(BrokenPipeError):
        leave(kernel, 1).send(b"words")


def send(end: socket.socket, word: bytes, descriptors: list[int]) -> None:
    """Send a word with descriptors, which the other end refuses from Linux 6.16 on."""
    with contextlib.suppress(PermissionError):
        socket.send_fds(end, [word], descriptors)


words = st.one_of(
    st.binary(max_size=2 * MAX_BYTES),
    st.builds(
        lambda word, rest: word + rest,
        st.sampled_from([b"copy ", b"copy 1 1", b"copy 1 ", b"skipped ", b"awake", b"running"]),
        st.binary(),
    ),
)


@given(st.lists(st.tuples(words, st.booleans()), max_size=40))
def test_whatever_is_said_costs_little_and_leaves_nothing_open(said: list[tuple[bytes, bool]]) -> None:
    keeper, before = Keeper(), len(os.listdir("/proc/self/fd"))
    with keeper.connect() as kernel:
        kernel.setblocking(False)
        mine, theirs = socket.socketpair()
        began = time.process_time()
        for word, has_descriptor in said:
            send(kernel, word or b"?", [theirs.fileno()] * has_descriptor)
            assert keeper.hear() in (0, os.getpid())
            assert len(keeper.copies) <= MAX_COPIES
            assert len(keeper.skipped) <= MAX_BYTES
        assert time.process_time() - began < 0.5 + 0.01 * len(said)
        mine.close()
        theirs.close()
    keeper.drop()
    keeper.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_flood_is_taken_in_by_parts(keeper: Keeper) -> None:
    with keeper.connect() as kernel:
        kernel.setblocking(False)
        for _ in range(2 * MAX_WORDS_AT_ONCE):
            kernel.send(b"awake")
        assert keeper.hear() == os.getpid()
        assert keeper.hear() == os.getpid()
        assert keeper.hear() == 0


def test_what_was_said_before_an_end_is_heard(keeper: Keeper) -> None:
    with keeper.connect() as kernel:
        kernel.send(b"awake")  # with a line that it has not read
    assert keeper.hear() == os.getpid()
    assert keeper.fileno() == -1


def test_an_end_is_heard(keeper: Keeper) -> None:
    keeper.connect().close()
    assert keeper.fileno() >= 0
    keeper.hear()
    assert keeper.fileno() == -1


def test_copies_wait_for_a_pause_but_for_the_first_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace()

    def request(seconds: float = 0.001, *, is_cell: bool = True) -> float:
        """Handle one, take its copy if that waits for nothing, and return the seconds that it waits for."""
        nonlocal now
        pace.begin()
        now += seconds
        pace.end(is_cell=is_cell)
        if not (timeout := pace.timeout()):
            pace.note_copy()
        return timeout

    assert request(is_cell=False) == pytest.approx(PAUSE), "what the code is to find can be made again"
    assert [request() for _ in range(FIRST)] == [0] * FIRST, "a crash costs one"
    assert [request() for _ in range(9)] == [pytest.approx(PAUSE)] * 9
    now += PAUSE
    assert pace.timeout() == 0
    pace.note_copy()
    assert [request() for _ in range(FIRST)] == [0] * FIRST, "the first calls after a pause"
    pace.wait(10 * PAUSE)
    now += 10 * PAUSE
    assert request() > 0, "a time in which a call waited for a copy is no pause"
    assert request(LATEST) == 0, "a crash costs no more work than that"
    assert request() > 0
    pace.is_exact = True
    assert [request() for _ in range(9)] == [0] * 9
