"""The rules of the seccomp profile that look at arguments, modelled on 64 bits as seccomp compares them."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from agent_tools.conformance.guest.arguments import ATTEMPTS, Attempt
from agent_tools.engines.package_data import shipped

PROFILE = json.loads(shipped("docker/seccomp.json").read_text())
CONDITIONAL = sorted({name for rule in PROFILE["syscalls"] if rule.get("args") for name in rule["names"]})
WIDTHS = {(attempt.name, index): width for attempt in ATTEMPTS for index, width in attempt.widths.items()}
SCHEDULING = ["sched_setaffinity", "sched_setparam", "sched_setscheduler"]
ALL_BITS = 2**64 - 1


@cache
def rules(name: str) -> list[dict[str, Any]]:
    return [rule for rule in PROFILE["syscalls"] if name in rule["names"]]


def holds(condition: dict[str, Any], word: int) -> bool:
    if condition["op"] == "SCMP_CMP_MASKED_EQ":
        return bool(word & condition["value"] == condition["valueTwo"])
    return {"SCMP_CMP_EQ": word == condition["value"], "SCMP_CMP_NE": word != condition["value"]}[condition["op"]]


def answers(name: str, *words: int) -> set[int]:
    """Return what the rules that fit say: 0 for allowed, else an errno; empty where the profile's default decides."""
    padded = [word & ALL_BITS for word in words] + [0] * 6
    fitting = [rule for rule in rules(name) if all(holds(each, padded[each["index"]]) for each in rule.get("args", ()))]
    return {rule.get("errnoRet", 0) for rule in fitting}


def is_allowed(name: str, *words: int) -> bool:
    return 0 in answers(name, *words)


def samples(name: str, count: int) -> Iterator[list[int]]:
    """Words that a rule may stumble over: those it names, with a bit more or less, and with high bits set."""
    some = random.Random(name)
    conditions = [each for rule in rules(name) for each in rule.get("args", ())]
    for _ in range(count):
        words = []
        for index in range(6):
            named = [each[part] for each in conditions if each["index"] == index for part in ("value", "valueTwo")]
            word = some.choice([0, 1, 2, some.choice([0, *named])])
            word ^= some.choice([0, 0, 0, 1 << some.randrange(32)])
            words.append(word | some.choice([0, 0, 1 << 16, 1 << 32, 0xFFFF << 16, 0xFFFFFFFF << 32]))
        yield words


def as_read(name: str, words: list[int]) -> list[int]:
    """Return what the kernel sees of these words."""
    return [word & ((1 << WIDTHS.get((name, index), 64)) - 1) for index, word in enumerate(words)]


def test_every_argument_that_a_rule_looks_at_is_tried_by_the_probe() -> None:
    looked_at = {
        (n, arg["index"]) for rule in PROFILE["syscalls"] for arg in rule.get("args", ()) for n in rule["names"]
    }
    assert looked_at == set(WIDTHS)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: f"{attempt.name}-{attempt.arguments}")
def test_what_the_probe_tries_is_refused_in_every_way(attempt: Attempt) -> None:
    assert len(list(attempt.ways())) >= 3
    for words in attempt.ways():
        assert not is_allowed(attempt.name, *words), words


def test_no_call_is_allowed_by_bits_that_the_kernel_does_not_read() -> None:
    tried = [(name, words) for name in CONDITIONAL for words in samples(name, 1500) if is_allowed(name, *words)]
    assert [(name, words) for name, words in tried if not is_allowed(name, *as_read(name, words))] == []


def test_no_two_rules_of_a_call_contradict_each_other() -> None:
    tried = [(name, words) for name in CONDITIONAL for words in samples(name, 1000)]
    assert [(name, words) for name, words in tried if len(answers(name, *words)) > 1] == []


PROCESSES = [0, *range(2, 2000), *(1 << bit for bit in range(1, 22)), 2**22 - 2, 2**22 - 1]


@pytest.mark.parametrize("name", SCHEDULING)
def test_every_process_may_be_scheduled_but_pid_1(name: str) -> None:
    assert [pid for pid in PROCESSES if not is_allowed(name, pid)] == []
    assert not is_allowed(name, 1)


def test_every_process_may_have_its_priority_changed_but_pid_1() -> None:
    assert [pid for pid in PROCESSES if not is_allowed("setpriority", 0, pid)] == []
    assert not is_allowed("setpriority", 0, 1)


NEEDED = {
    "threads": ("clone", (0x3D0F00,)),
    "a TCP socket that does not block": ("socket", (2, 1 | 0x80800, 6)),
    "a UDP socket over IPv6": ("socket", (10, 2 | 0x80000, 0)),
    "a list of interfaces": ("socket", (16, 3, 0)),
    "no delay": ("setsockopt", (5, 6, 1)),
    "keeping alive": ("setsockopt", (5, 6, 37)),
    "an address again": ("setsockopt", (5, 1, 2)),
    "a larger buffer": ("setsockopt", (5, 1, 7)),
    "the sender's credentials": ("setsockopt", (5, 1, 16)),
    "no descriptors of others": ("setsockopt", (5, 1, 83)),
    "IPv6 alone": ("setsockopt", (5, 41, 26)),
    "writing a file": ("openat", (2**64 - 100, 0, 0x80241, 0o666)),
    "memory": ("mmap", (0, 4096, 3, 0x22, 2**64 - 1)),
    "huge pages of one's own memory": ("mmap", (0, 1 << 21, 3, 0x4022, 2**64 - 1)),
    "a file in memory": ("memfd_create", (0, 3)),
    "a lock of SQLite": ("fcntl", (5, 6)),
    "a lock of an open file": ("fcntl", (5, 38)),
    "a copy of a descriptor": ("fcntl", (5, 1030)),
    "a descriptor that does not block": ("ioctl", (5, 0x5421)),
    "bytes that wait": ("ioctl", (5, 0x541B)),
    "the size of a terminal": ("ioctl", (5, 0x5413)),
    "a terminal of one's own": ("ioctl", (5, 0x540E)),
    "opening a pseudo terminal": ("ioctl", (5, 0x80045430)),
    "a hole in a file": ("fallocate", (5, 3)),
    "a copy that shares blocks": ("ioctl", (5, 0x40049409)),
    "the flags of an interface": ("ioctl", (5, 0x8913)),
    "a graphics card": ("ioctl", (5, 0xC020462A)),
    "one's own limits": ("prlimit64", (0, 7)),
}


@pytest.mark.parametrize(("name", "words"), NEEDED.values(), ids=NEEDED.keys())
def test_what_code_needs_is_allowed(name: str, words: tuple[int, ...]) -> None:
    assert is_allowed(name, *words)


@pytest.mark.parametrize(("name", "flags"), [("open", (0,)), ("openat", (2**64 - 100, 0))])
def test_files_without_a_name_are_refused_as_if_the_file_system_had_none(name: str, flags: tuple[int, ...]) -> None:
    for high in (0, 1 << 32, 0xFFFFFFFF << 32):
        assert answers(name, *flags, 0x410002 | high, 0o600) == {errno.EOPNOTSUPP}


@pytest.mark.parametrize("mode", [0, 1, 2, 8, 0x10, 0x11, 0x20, 0x40, 0x41, 0x80, 1 << 32])
def test_fallocate_is_refused_as_if_the_file_system_had_none_unless_it_punches_a_hole(mode: int) -> None:
    assert answers("fallocate", 5, mode, 0, 4096) == {errno.EOPNOTSUPP}
    assert not is_allowed("fallocate", 5, mode | 7, 0, 4096)


def test_sendfile_is_refused_as_if_it_could_not_copy_these_files() -> None:
    assert answers("sendfile", 1, 2, 0, 4096) == {errno.EINVAL}
