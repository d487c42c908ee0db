"""work_dir on both sides of an engine that shares none: with the real file server, and with hostile ones."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import FileRejected
from agent_tools.guest.wire.files import CONTENT, HEAD, pack_head
from agent_tools.guest.wire.framing import HEADER, pack
from agent_tools.limits import MIB, Limits
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.files.mirror import Mirror, is_plain_name
from tests.unit.runtime.files.file_server import FileServers, content, write

ME = (os.getuid(), os.getgid())


class Pair:
    """A folder here and one there, with the guest's own file server between them."""

    def __init__(self, here: Path, there: Path, **limits: float) -> None:
        self.here, self.there = here, there
        self._file_servers = FileServers(there)
        self.servers, self.connect = self._file_servers.all, self._file_servers.connect
        bounds = Limits(**{"min_disk_free": 0, **limits})  # type: ignore[arg-type]
        self.mirror = Mirror(here, ME, bounds, GuestFiles(bounds, self.connect))

    def close(self) -> None:
        self.mirror.files.close()
        self._file_servers.wait()


@pytest.fixture
def new_pair(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    with ExitStack() as stack:

        def make(**limits: float) -> Pair:
            for name in ("here", "there"):
                (tmp_path / name).mkdir()
            pair = Pair(tmp_path / "here", tmp_path / "there", **limits)
            stack.callback(pair.close)
            return pair

        yield make


@pytest.fixture
def pair(new_pair: Callable[..., Pair]) -> Pair:
    return new_pair()


FILES = {
    "plain.txt": b"text",
    "empty": b"",
    "a/b/c/nested.bin": bytes(range(256)),
    "数据　表 ü.csv": b"1,2\n",
    "-rf": b"odd",
    "x" * 255: b"long",
    "large.bin": os.urandom(3 * MIB + 17),
}


def test_all_kinds_of_files_go_in(pair: Pair) -> None:
    write(pair.here, FILES)
    pair.mirror.push()
    assert content(pair.there) == FILES


def test_all_kinds_of_files_come_out(pair: Pair) -> None:
    write(pair.there, FILES)
    assert pair.mirror.pull() == ""
    assert content(pair.here) == FILES


def test_changes_and_deletions_go_both_ways(pair: Pair) -> None:
    write(pair.here, {"a": b"1", "b": b"2", "d/c": b"3"})
    pair.mirror.push()
    write(pair.there, {"a": b"changed", "new": b"4"})
    (pair.there / "d/c").unlink()
    pair.mirror.pull()
    assert content(pair.here) == {"a": b"changed", "b": b"2", "new": b"4"}
    write(pair.here, {"new": b"changed too"})
    (pair.here / "b").unlink()
    pair.mirror.push()
    assert content(pair.there) == {"a": b"changed", "new": b"changed too"}


def test_what_has_not_changed_is_not_sent_again(pair: Pair) -> None:
    write(pair.here, {"a": b"1"})
    pair.mirror.push()
    written = (pair.there / "a").stat().st_ino
    pair.mirror.pull()
    pair.mirror.push()
    assert (pair.there / "a").stat().st_ino == written


def test_a_file_that_comes_here_while_code_runs_goes_in_with_the_next_run(pair: Pair) -> None:
    pair.mirror.push()
    write(pair.there, {"by code": b"1"})
    write(pair.here, {"by user": b"2"})
    pair.mirror.pull()
    pair.mirror.push()
    assert content(pair.there) == content(pair.here) == {"by code": b"1", "by user": b"2"}


def test_a_file_that_is_written_between_runs_comes_out_with_the_next_run(pair: Pair) -> None:
    pair.mirror.push()
    pair.mirror.pull()
    write(pair.there, {"by a thread": b"1"})
    write(pair.here, {"by user": b"2"})
    pair.mirror.push()
    pair.mirror.pull()
    assert content(pair.here) == {"by a thread": b"1", "by user": b"2"}


def test_a_file_changed_here_survives_its_deletion_there(pair: Pair) -> None:
    write(pair.here, {"a": b"1"})
    pair.mirror.push()
    (pair.there / "a").unlink()
    write(pair.here, {"a": b"changed"})
    pair.mirror.pull()
    assert content(pair.here) == {"a": b"changed"}
    pair.mirror.push()
    assert content(pair.there) == {"a": b"changed"}


@pytest.mark.parametrize("mode", [0, 0o400, 0o100])
def test_files_in_a_folder_that_code_may_not_read_are_kept_here(pair: Pair, mode: int) -> None:
    write(pair.here, {"a/b/c": b"1", "d": b"2"})
    pair.mirror.push()
    (pair.there / "a").chmod(mode)
    write(pair.there, {"e": b"3"})
    assert re.fullmatch(r"folders \([12] could not be read\)", pair.mirror.pull())
    assert content(pair.here) == {"a/b/c": b"1", "d": b"2", "e": b"3"}
    (pair.there / "a").chmod(0o700)
    (pair.there / "a/b/c").unlink()
    assert pair.mirror.pull() == ""
    assert content(pair.here) == {"d": b"2", "e": b"3"}


def test_a_file_named_folders_hides_no_folder_that_code_may_not_read(pair: Pair) -> None:
    write(pair.there, {"a/b": b"1", "folders": b"2"})
    (pair.there / "a").chmod(0)
    assert re.fullmatch(r"folders \([12] could not be read\)", pair.mirror.pull())


def test_a_file_and_a_folder_may_change_places(pair: Pair) -> None:
    write(pair.here, {"a": b"1", "b/c/d": b"2"})
    pair.mirror.push()
    (pair.here / "a").unlink()
    (pair.here / "b/c/d").unlink()
    (pair.here / "b/c").rmdir()
    (pair.here / "b").rmdir()
    write(pair.here, {"a/x": b"3", "b": b"4"})
    pair.mirror.push()
    assert content(pair.there) == {"a/x": b"3", "b": b"4"}
    (pair.there / "a/x").unlink()
    (pair.there / "a").rmdir()
    (pair.there / "b").unlink()
    write(pair.there, {"a": b"5", "b/y": b"6"})
    pair.mirror.pull()
    assert content(pair.here) == {"a": b"5", "b/y": b"6"}


def test_a_file_that_the_host_cannot_write_is_named_and_the_others_come_out(pair: Pair) -> None:
    write(pair.here, {"kept/in": b"1", "taken": b"2"})
    (pair.here / "kept" / "link").symlink_to("in")
    pair.mirror.push()
    (pair.there / "kept" / "in").unlink()
    (pair.there / "kept").rmdir()
    (pair.here / "taken").unlink()
    (pair.here / "taken").symlink_to("/nowhere")
    (pair.there / "taken").unlink()
    write(pair.there, {"a": b"3", "kept": os.urandom(MIB), "taken/x": b"4", "z": b"5"})
    failed = pair.mirror.pull()
    assert sorted(failed[:-1].split("), ")) == [
        "kept (Is a directory, on the host",
        "taken/x (Not a directory, on the host",
    ]
    assert content(pair.here) == {"a": b"3", "z": b"5"}
    assert pair.mirror.pull() == ""


def test_links_fifos_and_names_that_disturb_do_not_come_out(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (pair.there / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(pair.there / "fifo")
    write(pair.there, {"a\x1b[2Jb": b"", "a\u202eb": b"", "a\nb": b"", os.fsdecode(b"a\xffb"): b"", "good": b"1"})
    assert pair.mirror.pull() == ""
    assert content(pair.here) == {"good": b"1"}


def test_a_file_that_is_too_large_is_told_once_and_the_rest_comes_out(new_pair: Callable[..., Pair]) -> None:
    pair = new_pair(max_file_bytes=1000)
    write(pair.there, {"big": bytes(1001), "good": b"1"})
    assert pair.mirror.pull() == "big (it is larger than 1,000 bytes (max_file_bytes))"
    assert content(pair.here) == {"good": b"1"}
    assert pair.mirror.pull() == ""


def test_more_than_work_dir_may_hold_is_not_fetched_at_all(new_pair: Callable[..., Pair]) -> None:
    pair = new_pair(max_work_dir_bytes=1000)
    write(pair.there, {"a": bytes(600), "b": bytes(600)})
    with pytest.raises(FileRejected, match="1,200 bytes, more than max_work_dir_bytes"):
        pair.mirror.pull()
    assert content(pair.here) == {}
    (pair.there / "a").unlink()
    pair.mirror.pull()
    assert content(pair.here) == {"b": bytes(600)}


@pytest.mark.parametrize("side", ["here", "there"])
def test_more_entries_than_work_dir_may_hold_are_refused(new_pair: Callable[..., Pair], side: str) -> None:
    pair = new_pair(max_work_dir_entries=5)
    write(getattr(pair, side), {str(number): b"" for number in range(6)})
    with pytest.raises(FileRejected, match="more than 5 entries"):
        pair.mirror.push() if side == "here" else pair.mirror.pull()


def test_no_room_in_there_is_told_with_the_name_and_the_next_push_tries_again(pair: Pair) -> None:
    write(pair.here, {"a/b": b"1", "c": b"2"})
    write(pair.there, {"a": b"in the way"})
    with pytest.raises(FileRejected, match="a/b could not be brought into the sandbox: "):
        pair.mirror.push()
    (pair.there / "a").unlink()
    pair.mirror.push()
    assert content(pair.there) == {"a/b": b"1", "c": b"2"}


def test_a_server_that_was_killed_is_replaced(pair: Pair) -> None:
    write(pair.here, {"a": b"1"})
    pair.mirror.push()
    pair.servers[0].kill()
    pair.servers[0].wait(10)
    write(pair.here, {"a": b"2"})
    pair.mirror.push()
    assert content(pair.there) == {"a": b"2"}
    pair.servers[1].kill()
    pair.servers[1].wait(10)
    write(pair.there, {"b": b"3"})
    pair.mirror.pull()
    assert content(pair.here) == {"a": b"2", "b": b"3"}


def test_no_server_to_be_had_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileRejected, match="sandbox has ended"):
        Mirror(tmp_path, ME, Limits(), GuestFiles(Limits(), lambda _most: None)).pull()


# -- hostile servers ----------------------------------------------------------------------------------------------

Answer = Callable[[socket.socket], None]


def says(*heads: Any) -> Answer:
    """Answers with these, whatever is asked; bytes go out as they are."""

    def answer(end: socket.socket) -> None:
        for head in heads:
            end.recv(65536)
            end.sendall(head if isinstance(head, bytes) else pack_head(head))
        end.recv(65536)

    return answer


def file(size: int) -> bytes:
    """An answer with the content of a file."""
    return pack_head({}) + pack(CONTENT, bytes(size)) + pack(CONTENT, b"")


def listing(*names: object, size: int = 1) -> dict[str, Any]:
    return {"entries": [[name, size, 1, 1] for name in names], "total": len(names)}


def drips(end: socket.socket) -> None:
    end.recv(65536)
    end.sendall(HEADER.pack(HEAD, 32 * MIB))
    while True:
        end.sendall(b" ")
        time.sleep(0.0005)


def never_ends(end: socket.socket) -> None:
    end.recv(65536)
    while True:
        end.sendall(pack_head(listing())[:-1] + bytes(65536))


def hangs(end: socket.socket) -> None:
    while end.recv(65536):
        pass


HOSTILE: dict[str, Answer] = {
    "hangs up": lambda end: None,
    "hangs": hangs,
    "drips": drips,
    "never ends": never_ends,
    "claims a huge answer": says(HEADER.pack(HEAD, 2**32 - 1)),
    "is neither answer nor content": says(pack(3, b"{}")),
    "is content": says(pack(CONTENT, b"{}")),
    "is no JSON": says(pack(HEAD, b"{nonsense")),
    "is no text": says(pack(HEAD, b"\xff\xfe\xfa")),
    "is no object": says([]),
    "is nested deep": says(pack(HEAD, b"[" * 500_000)),
    "is nested deep as an object": says(pack(HEAD, b'{"a":' * 500_000)),
    "is costly to read": lambda end: says(pack(HEAD, b'{"entries": [' + b"[]," * 8_000_000 + b"[]]}"))(end),
    "has a huge number": says(pack(HEAD, b'{"total": ' + b"9" * 100_000 + b"}")),
    "has no entries": says({}),
    "has entries that are none": says({"entries": [5, None, "abcd"], "total": 1}),
    "has an entry that is short": says({"entries": [["a", 1]], "total": 1}),
    "has sizes below zero": says(listing("a", size=-1)),
    "has no whole sizes": says({"entries": [["a", 1.5, 1, 1]], "total": 1}),
    "has truth for a size": says({"entries": [["a", True, 1, 1]], "total": 1}),
    "lies about the total": says({"entries": [], "total": -1}),
    "lies about what could not be read": says({"entries": [], "total": 0, "unread": -1}),
    "says it is too much": says({"entries": [], "total": 2**60}),
    "has more entries than were asked for": says(listing(*map(str, range(1001)))),
    "holds more than it may": says(listing("a", "b", size=2**40)),
    "gives a deep error": says({"errno": [[[[]]]]}),
    "gives a long error": says({"errno": "\x1b]8;;http://x\x07" * 100_000}),
    "sends more than the list said it all was": says(listing("a", "b"), file(900), file(900)),
    "sends a piece that is too long": says(listing("a"), pack_head({}) + HEADER.pack(CONTENT, 2**31 - 1)),
    "breaks off in a file": says(listing("a"), file(900)[:-500]),
    "leaves the folder": says(listing("../outside"), file(1)),
    "names the root": says(listing("/tmp/outside"), file(1)),
    "names a folder within that leaves": says(listing("a/../../outside"), file(1)),
    "names nothing": says(listing("")),
    "names the folder itself": says(listing(".")),
    "names with an empty part": says(listing("a//b")),
    "names with an end of line": says(listing("a\nb")),
    "names with an escape": says(listing("a\x1bb")),
    "names with a direction": says(listing("a\u202eb")),
    "names with half a character": says(listing("a\ud800b")),
    "names with a NUL": says(listing("a\0b")),
    "names at length": says(listing("a" * 5000)),
    "names with a long part": says(listing("a" * 300), file(1)),
    "names a number": says(listing(5)),
    "names a file in too deep a folder": says(listing("a/" * 17 + "b"), file(1)),
    "names a file in thousands of folders": says(listing("a/" * 2000 + "b"), file(1)),
    "names files in too many folders": says(listing(*(f"{n}/" * 16 + "b" for n in range(60)))),
    "names a file as a folder": says(listing("a", "a/b"), file(1), file(1)),
}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Callable[..., Mirror]]:
    """Makes a mirror of `tmp_path / 'here'` whose guest answers as told."""
    (tmp_path / "here").mkdir()
    with ExitStack() as stack:

        def make(answer: Answer, **limits: float) -> Mirror:
            ours, theirs = socket.socketpair()

            def serve() -> None:
                with theirs, suppress(OSError):
                    answer(theirs)

            server = threading.Thread(target=serve)
            server.start()
            stack.callback(server.join)
            bounds = _limits(**limits)
            mirror = Mirror(tmp_path / "here", ME, bounds, GuestFiles(bounds, partial(Conversation, ours)))
            stack.callback(ours.close)
            stack.callback(mirror.files.close)
            return mirror

        yield make


def _limits(**limits: float) -> Limits:
    bounds = {"sync_timeout": 1.0, "max_work_dir_entries": 1000, "max_work_dir_bytes": 1000, "min_disk_free": 0}
    return Limits(**{**bounds, **limits})  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_is_refused_in_time_and_in_little_memory(
    hostile: Callable[..., Mirror], tmp_path: Path, answer: Answer
) -> None:
    mirror = hostile(answer)
    before, started = _peak_bytes(), time.monotonic()
    with pytest.raises(FileRejected) as refusal:
        mirror.pull()
    assert time.monotonic() - started < 2.5
    assert _peak_bytes() - before < 150 * MIB
    assert len(str(refusal.value)) < 1000
    assert "\x1b" not in str(refusal.value)
    assert not (tmp_path / "outside").exists()
    assert not Path("/tmp/outside").exists()
    assert all(name in ("a",) for name in os.listdir(tmp_path / "here"))


def test_a_file_as_deep_as_the_guest_looks_comes_out_with_few_descriptors(pair: Pair) -> None:
    name = "d/" * 16 + "deep.txt"
    write(pair.there, {name: b"x", "d/" * 17 + "deeper.txt": b"y"})
    before, most = len(os.listdir("/proc/self/fd")), 0

    def look(frame: object, event: str, called: object) -> None:
        nonlocal most
        if event == "c_return" and called is os.open:
            most = max(most, len(os.listdir("/proc/self/fd")))

    sys.setprofile(look)
    try:
        assert pair.mirror.pull() == ""
    finally:
        sys.setprofile(None)
    assert content(pair.here) == {name: b"x"}
    assert most <= before + 5  # the connection's among them


def test_files_in_as_many_folders_as_there_may_be_come_out(new_pair: Callable[..., Pair]) -> None:
    files = {f"{first}/{second}/{third}": b"x" for first in "abc" for second in ("a", "b.c", "b") for third in "xyz"}
    pair = new_pair(max_work_dir_entries=27 + 12)
    write(pair.there, files)
    assert pair.mirror.pull() == ""
    assert content(pair.here) == files


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_file_that_cannot_be_read_in_there_is_named_with_the_reason(hostile: Callable[..., Mirror]) -> None:
    assert hostile(says(listing("a"), {"errno": errno.EACCES})).pull() == "a (Permission denied)"


def test_a_file_that_vanished_in_there_is_nothing_to_tell(hostile: Callable[..., Mirror], tmp_path: Path) -> None:
    assert hostile(says(listing("a"), {"errno": errno.ENOENT})).pull() == ""
    assert os.listdir(tmp_path / "here") == []


def test_a_long_list_of_reasons_is_cut(hostile: Callable[..., Mirror]) -> None:
    answers = [{"errno": errno.EACCES}] * 9
    assert hostile(says(listing(*"abcdefghi"), *answers)).pull().endswith("e (Permission denied) and 4 more")


def test_a_push_to_a_guest_that_reads_nothing_ends_in_time(hostile: Callable[..., Mirror], tmp_path: Path) -> None:
    done = threading.Event()
    mirror = hostile(lambda end: done.wait(20) and None)
    (tmp_path / "here" / "big").write_bytes(bytes(8 * MIB))
    started = time.monotonic()
    with pytest.raises(FileRejected, match="not done in 1 s"):
        mirror.push()
    assert time.monotonic() - started < 2.5
    done.set()


@pytest.mark.parametrize(
    "name", ["a", "a/b", "ü 1.txt", "...", "a..b", " ", "　", "-x", "a:b\\c", "a" * 255, "d/" * 16 + "a"]
)
def test_plain_names(name: str) -> None:
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/a", "a/", "./a", "a/./b", "a/..", "\x7f", "\x85", "\u2066", None, 5, "d/" * 17 + "a"]
)
def test_names_that_are_not_plain(name: object) -> None:
    assert not is_plain_name(name)
