"""The page of memory by which the host tells PID 1 when a run's time is up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from agent_tools.guest.wire.alarm import AlarmReader, AlarmWriter


@pytest.fixture
def writer() -> Iterator[AlarmWriter]:
    writer = AlarmWriter()
    yield writer
    writer.close()


@pytest.fixture
def reader(writer: AlarmWriter) -> Iterator[AlarmReader]:
    reader = AlarmReader(writer.reader)
    yield reader
    reader.close()


def test_a_fresh_page_says_never(reader: AlarmReader) -> None:
    assert reader.changed() == (0.0, 0.0)


def test_what_is_set_is_read_once(writer: AlarmWriter, reader: AlarmReader) -> None:
    before = time.monotonic()
    writer.set(30.0, 0.5)
    times = reader.changed()
    assert times is not None
    assert before + 30.0 <= times[0] <= time.monotonic() + 30.0
    assert times[1] == pytest.approx(times[0] + 0.5)
    assert reader.changed() is None


def test_only_the_latest_change_counts(writer: AlarmWriter, reader: AlarmReader) -> None:
    for _ in range(100):
        writer.set(30.0, 0.5)
        writer.clear()
    assert reader.changed() == (0.0, 0.0)


def test_a_page_that_is_being_written_is_read_at_the_next_look(writer: AlarmWriter, reader: AlarmReader) -> None:
    assert reader.changed() == (0.0, 0.0)
    os.pwrite(writer._memory, b"\1", 1)  # the number before the times, and not yet the one after them
    assert reader.changed() is None
    writer.set(1.0, 1.0)
    assert reader.changed() is not None


def test_both_sides_number_the_changes_alike(writer: AlarmWriter, reader: AlarmReader) -> None:
    for _ in range(3):
        writer.set(30.0, 0.5)
        reader.changed()
        assert reader.number == writer.number


def test_the_guests_descriptor_cannot_be_written(writer: AlarmWriter, reader: AlarmReader) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(writer.reader, b"x", 0)
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
        os.ftruncate(writer.reader, 0)


def test_writing_after_the_end_does_nothing(writer: AlarmWriter, reader: AlarmReader) -> None:
    writer.close()
    writer.set(1.0, 1.0)
    writer.clear()
    assert reader.changed() == (0.0, 0.0)
