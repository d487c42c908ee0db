"""The lifeline's words: every order and report there and back, and the lines that are neither."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.wire.lines import MAX_LINE, MAX_NUMBER, MAX_TEXT
from agent_tools.guest.wire.words import (
    Arm,
    Branch,
    Disarm,
    EndBranch,
    EndCommands,
    Exit,
    Failed,
    Files,
    FreshBranch,
    Interrupt,
    Kill,
    Mark,
    Marked,
    Order,
    Pause,
    Printed,
    Proxy,
    Ready,
    Report,
    Resume,
    Rouse,
    SocketOrder,
    Spawn,
    Start,
    Wake,
    channels,
    read_order,
    read_report,
    write,
)

ORDERS: list[tuple[Order, bytes]] = [
    (Start(1), b"start 1"),
    (Start(1_000_000), b"start 1000000"),
    (Files(7), b"files 7"),
    (Wake(9, 4), b"wake 9 4"),
    (Mark(4), b"mark 4"),
    (Branch(10, 4), b"branch 10 4"),
    (FreshBranch(11), b"fresh_branch 11"),
    (EndBranch(10), b"end_branch 10"),
    (Spawn(8), b"spawn 8"),
    (Proxy(9), b"proxy 9"),
    (Arm(30.2, 0.5), b"arm 30.200 0.500"),
    (Arm(0.0, 0.0), b"arm 0.000 0.000"),
    (Arm(86_400.25, 12.125), b"arm 86400.250 12.125"),
    (Disarm(), b"disarm"),
    (Interrupt(), b"interrupt 0.000"),
    (Interrupt(0.5), b"interrupt 0.500"),
    (Kill(), b"kill"),
    (EndCommands(), b"end_commands"),
    (Pause(), b"pause"),
    (Resume(), b"resume"),
    (Rouse(), b"rouse"),
]
REPORTS: list[tuple[Report, bytes]] = [
    (Ready(), b"ready"),
    (Exit(1), b"exit 1 0 0 0 /tmp 0 0"),
    (Exit(2, code=7), b"exit 2 7 0 0 /tmp 0 0"),
    (Exit(2, code=1, oom=True), b"exit 2 1 0 1 /tmp 0 0"),
    (Exit(0, signal=9), b"exit 0 0 9 0 /tmp 0 0"),
    (Exit(12, signal=9, oom=True), b"exit 12 0 9 1 /tmp 0 0"),
    (Exit(1, signal=9, oom=True, folder="/dev/shm", files=65, mib=3), b"exit 1 0 9 1 /dev/shm 65 3"),
    (Exit(12, signal=64), b"exit 12 0 64 0 /tmp 0 0"),
    (Failed(1, "Traceback: of many words"), b"failed 1 VHJhY2ViYWNrOiBvZiBtYW55IHdvcmRz"),
    (Marked(1, 5), b"marked 1 5"),
    (Printed(3, "stdout", "gr\u00fcn\n"), b"printed 3 stdout Z3LDvG4K"),
    (Printed(3, "stderr", "x" * MAX_TEXT), b"printed 3 stderr " + b"eHh4" * (MAX_TEXT // 3)),
    (Failed(1, "one\ntwo\n  three"), b"failed 1 b25lCnR3bwogIHRocmVl"),
]


@pytest.mark.parametrize(("order", "line"), ORDERS, ids=[line.decode() for _, line in ORDERS])
def test_an_order_is_a_line_and_the_line_is_the_order(order: Order, line: bytes) -> None:
    assert write(order) == line
    assert read_order(line) == order


@pytest.mark.parametrize(("report", "line"), REPORTS, ids=[line.decode()[:20] for _, line in REPORTS])
def test_a_report_is_a_line_and_the_line_is_the_report(report: Report, line: bytes) -> None:
    assert write(report) == line
    assert read_report(line) == report


def test_every_order_and_every_report_is_tried_above() -> None:
    assert {type(order) for order, _ in ORDERS} == set(typing.get_args(Order))
    assert {type(report) for report, _ in REPORTS} == set(typing.get_args(Report))


def test_an_order_is_no_report_and_a_report_no_order() -> None:
    assert [read_report(line) for _, line in ORDERS] == [None] * len(ORDERS)
    assert [read_order(line) for _, line in REPORTS] == [None] * len(REPORTS)


WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)
NUMBER = st.integers(0, MAX_NUMBER - 1)
ANY_ORDER = (
    st.builds(Start, NUMBER)
    | st.builds(Files, NUMBER)
    | st.builds(Proxy, NUMBER)
    | st.builds(Branch, NUMBER, NUMBER)
    | st.builds(EndBranch, NUMBER)
    | st.builds(Arm, *[st.integers(0, 10**9).map(lambda thousandths: thousandths / 1000)] * 2)
    | st.sampled_from([Disarm(), Interrupt(), Interrupt(0.25), Kill(), Pause(), Resume()])
)
ANY_REPORT = (
    st.just(Ready())
    | st.builds(Exit, NUMBER, code=NUMBER, oom=st.booleans())
    | st.builds(Exit, NUMBER, signal=st.integers(1, 200), oom=st.booleans())
    | st.builds(Printed, NUMBER, st.sampled_from(["stdout", "stderr"]), st.text(min_size=1, max_size=700))
    | st.builds(Failed, NUMBER, st.text(max_size=700))
)


@given(ANY_ORDER)
def test_any_order_is_read_as_it_was_written(order: Order) -> None:
    assert read_order(write(order)) == order


@given(ANY_REPORT)
def test_any_report_is_read_as_it_was_written(report: Report) -> None:
    assert read_report(write(report)) == report


# -- lines that are neither -------------------------------------------------------------------------------------------

LONG = "9" * 5000
NO_REPORTS = {
    "nothing": b"",
    "a blank": b" ",
    "NULs": bytes(10),
    "noise": b"\xff" * MAX_LINE,
    "unknown words": b"hello",
    "three unknown words": b"hello 1 x",
    "capitals": b"READY",
    "ready with an argument": b"ready 1",
    "ready with two": b"ready 1 0",
    "exit alone": b"exit",
    "exit with too few": b"exit 1 7 0 0 /tmp 0",
    "exit with a word more": b"exit 1 7 0 0 /tmp 0 0 0",
    "exit with another oom": b"exit 1 7 0 2 /tmp 0 0",
    "exit with another folder": b"exit 1 7 0 1 /home 0 0",
    "exit with two blanks": b"exit  1 7 0 0 /tmp 0 0",
    "exit with a line end": b"exit 1 7 0 0 /tmp 0 0\n",
    "a generation in words": b"exit one 7 0 0 /tmp 0 0",
    "a negative generation": b"exit -1 7 0 0 /tmp 0 0",
    "a signed generation": b"exit +1 7 0 0 /tmp 0 0",
    "a fraction of a generation": b"exit 1.0 7 0 0 /tmp 0 0",
    "a generation in other digits": "exit \u0661 7 0 0 /tmp 0 0".encode(),
    "a generation with an underscore": b"exit 1_0 7 0 0 /tmp 0 0",
    "a generation that is too large": f"exit {MAX_NUMBER} 7 0 0 /tmp 0 0".encode(),
    "a generation of 5,000 digits": f"exit {LONG} 7 0 0 /tmp 0 0".encode(),
    "a negative code": b"exit 1 -9 0 0 /tmp 0 0",
    "a code in hexadecimal": b"exit 1 0x7 0 0 /tmp 0 0",
    "a code of 11 digits": b"exit 1 00000000007 0 0 /tmp 0 0",
    "failed alone": b"failed",
    "failed without a traceback": b"failed 1",
    "failed without a generation": b"failed eA==",
    "failed in bytes that are no ASCII": b"failed 1 \xc3\xa9",
    "failed over the limit": b"failed 1 " + b"eHh4" * MAX_LINE,
    "printed on no stream": b"printed 1 eA==",
    "printed on an unknown stream": b"printed 1 stdin eA==",
    "printed in two words": b"printed 1 stdout eA== eA==",
    "printed not in base64": b"printed 1 stdout x!",
    "printed in cut base64": b"printed 1 stdout eA",
}


@pytest.mark.parametrize("line", NO_REPORTS.values(), ids=NO_REPORTS.keys())
def test_what_is_no_report_is_none(line: bytes) -> None:
    assert read_report(line) is None


NO_ORDERS = {
    "nothing": b"",
    "a blank": b" ",
    "noise": b"\xff" * 100,
    "unknown words": b"hello",
    "capitals": b"KILL",
    "start without a number": b"start",
    "start with words": b"start one",
    "start with two numbers": b"start 1 2",
    "start with a fraction": b"start 1.5",
    "arm without seconds": b"arm",
    "arm with one number": b"arm 1",
    "arm with words": b"arm soon later",
    "arm with three numbers": b"arm 1 2 3",
    "kill with an argument": b"kill 1",
}


@pytest.mark.parametrize("line", NO_ORDERS.values(), ids=NO_ORDERS.keys())
def test_what_is_no_order_is_none(line: bytes) -> None:
    assert read_order(line) is None


LOOSE: dict[str, tuple[bytes, Report]] = {
    "zeros in front": (b"exit 0000000001 007 0 0 /tmp 0 0", Exit(1, code=7)),
    "the largest numbers": (
        f"exit {MAX_NUMBER - 1} {MAX_NUMBER - 1} 0 0 /tmp 0 0".encode(),
        Exit(2**31 - 1, code=2**31 - 1),
    ),
    "a signal that is none": (b"exit 1 0 0 0 /tmp 0 0", Exit(1)),
    "a failure in bytes that are no UTF-8": (b"failed 1 /w==", Failed(1, "\ufffd")),
    "a failure without words": (b"failed 1 ", Failed(1, "")),
}


@pytest.mark.parametrize(("line", "report"), LOOSE.values(), ids=LOOSE.keys())
def test_a_loosely_written_report_is_read_for_what_it_says(line: bytes, report: Report) -> None:
    assert read_report(line) == report


@given(st.binary(max_size=5000) | st.lists(WORD | st.just("exit") | st.just("1"), max_size=6).map(" ".join))
def test_no_line_raises(line: bytes | str) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    report = read_report(data)
    assert report is None or isinstance(report, typing.get_args(Report))
    if isinstance(report, Exit):
        assert all(0 <= number < MAX_NUMBER for number in (report.generation, report.code, report.signal))


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_long_traceback_is_cut_to_a_line() -> None:
    line = write(Failed(1, "é" * 10_000))
    assert len(line) < MAX_LINE
    assert read_report(line) == Failed(1, "é" * (MAX_TEXT // 2))


def test_the_channels_of_orders_that_count_up_are_apart_and_never_those_of_the_words() -> None:
    orders: list[SocketOrder] = [Files(number) if number % 3 else Start(number) for number in range(1, 100)]
    found = [channel for order in orders for channel in channels(order)]
    assert [len(channels(order)) for order in orders] == [order.sockets for order in orders]
    assert len(found) == len({*found, 0}) - 1
