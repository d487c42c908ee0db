"""The judge of one call: did it raise only what it may, and did it cost no more than its input can be worth?

    processor time <= seconds_per_byte x input + seconds      of the process, so that a library's threads count
    memory         <= bytes_per_byte   x input + bytes        the most there was during the call, over what was before

Time is asked first, since it costs nothing to ask. What took long is run again before it is believed, and what touched
much fresh memory is run again under tracemalloc, which knows what was really taken.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

MIB = 1024 * 1024
PAGE = resource.getpagesize()
PATIENCE = 4.0  # times its bound that a call may go on before it is broken off
_OURS = "agent_tools"


@dataclass(frozen=True)
class Bound:
    """What a call may cost, by the bytes of its input."""

    seconds: float = 0.25
    seconds_per_byte: float = 10e-6
    bytes: int = 8 * MIB
    bytes_per_byte: float = 64

    def seconds_for(self, size: int) -> float:
        """Processor time for an input of so many bytes."""
        return self.seconds + self.seconds_per_byte * size

    def bytes_for(self, size: int) -> int:
        """Memory for an input of so many bytes."""
        return int(self.bytes + self.bytes_per_byte * size)


Parts = Sequence[bytes]


@dataclass(frozen=True)
class Target:
    """A reader of untrusted input.

    Attributes:
        run: reads what came, part by part.
        unfold: the parts that an input stands for (see unfold.py). The bound goes by their size; making them is free.
        allowed: exceptions that say that what came is bad.
        words: what a fuzzer may put in, whole.
        vocabulary: texts in the values that a program makes, for a reader of values; () for any other.
        max_len: bytes of the longest input a fuzzer makes.
    """

    run: Callable[[Parts], object]
    unfold: Callable[[bytes], Parts] = lambda data: [data]
    allowed: tuple[type[Exception], ...] = ()
    bound: Bound = Bound()
    words: tuple[bytes, ...] = ()
    vocabulary: tuple[str, ...] = ()
    max_len: int = 4096


class Finding(AssertionError):
    """An input that a reader does not stand. `kind` is short, `where` the place in our code."""

    def __init__(self, kind: str, where: str, message: str) -> None:
        super().__init__(f"{kind} at {where}: {message}")
        self.kind = kind
        self.where = where


class _BrokenOff(BaseException):
    """Not an Exception: a reader that catches those shall not catch this."""


@dataclass
class _Look:
    """One call, seen from outside."""

    seconds: float = 0.0
    fresh: int = 0  # bytes of memory touched for the first time
    where: str = ""
    is_broken_off: bool = False
    failure: Exception | None = None


def judge(target: Target, data: bytes, *, slowness: float = 1.0, is_exact: bool = False) -> None:
    """Run a reader on an input.

    `slowness` is how much longer everything takes where coverage is traced; `is_exact` measures memory in any case.

    Raises:
        Finding: it raised what it may not, or cost too much.
    """
    parts = target.unfold(data)
    size = sum(map(len, parts))
    seconds, most = target.bound.seconds_for(size) * slowness, target.bound.bytes_for(size)
    look = _look(target, parts, seconds)
    _check_exception(target, look)
    if look.seconds > seconds:
        _check_time(look, _look(target, parts, seconds), f"for {size:,} bytes, more than {seconds:.2f} s", seconds)
    if is_exact or look.fresh > most // 4 or look.seconds > seconds / 4:
        taken = _memory(target, parts, seconds)
        if taken > most:
            message = f"{taken / MIB:.1f} MiB for {size:,} bytes, more than {most / MIB:.1f} MiB"
            raise Finding("memory", look.where or "its peak", message)


def _check_time(look: _Look, again: _Look, message: str, allowed: float) -> None:
    """Raise if it took too long twice: the machine may have been busy with something else."""
    seconds = min(look.seconds, again.seconds)
    if seconds > allowed:
        ending = ", and was broken off" if look.is_broken_off else ""
        raise Finding("time", look.where or again.where, f"{seconds:.2f} s of processor time {message}{ending}")


def _check_exception(target: Target, look: _Look) -> None:
    if look.failure is not None and not isinstance(look.failure, target.allowed):
        name = type(look.failure).__name__
        where = _place(look.failure.__traceback__)
        raise Finding(name, where, f"not one of what it may raise: {look.failure!s:.300}") from look.failure


def _look(target: Target, parts: Parts, seconds: float) -> _Look:
    look = _Look()
    faults, started = _faults(), time.process_time()
    _watch(look, seconds, target, parts)
    look.seconds, look.fresh = time.process_time() - started, (_faults() - faults) * PAGE
    return look


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _watch(look: _Look, seconds: float, target: Target, parts: Parts) -> None:
    """Run a reader, note where it is once it has used its time, and break it off at a multiple of that.

    No context manager: a signal that arrives while one is left would raise beyond its reach.
    """
    rings, is_over = 0, False

    def ring(_: int, frame: FrameType | None) -> None:
        nonlocal rings
        rings += 1
        look.where = look.where or _innermost(frame)
        if rings > PATIENCE and not is_over:
            raise _BrokenOff

    is_watched = threading.current_thread() is threading.main_thread()
    if is_watched:
        before = signal.signal(signal.SIGPROF, ring)
        signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        target.run(parts)
    except _BrokenOff:
        look.is_broken_off = True
    except Exception as exc:
        look.failure = exc
    finally:
        is_over = True
        if is_watched:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


def _innermost(frame: FrameType | None) -> str:
    while frame is not None:
        if f"/{_OURS}/" in frame.f_code.co_filename:
            return _named(frame)
        frame = frame.f_back
    return "a library"


def _place(traceback: Any) -> str:
    found = "a library"
    while traceback is not None:
        if f"/{_OURS}/" in traceback.tb_frame.f_code.co_filename:
            found = _named(traceback.tb_frame)
        traceback = traceback.tb_next
    return found


def _named(frame: FrameType) -> str:
    path = frame.f_code.co_filename.rpartition(f"/{_OURS}/")[2]
    return f"{path}:{frame.f_code.co_name}"


def _memory(target: Target, parts: Parts, seconds: float) -> int:
    """The most that was held at any moment of the call: Python's objects, numpy's arrays, and Arrow's buffers."""
    gc.collect()
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        with _arrow_counted() as arrow:
            _watch(_Look(), 20 * seconds, target, parts)
        return tracemalloc.get_traced_memory()[1] - before + arrow()
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def _arrow_counted() -> Iterator[Callable[[], int]]:
    """Arrow has memory of its own, which tracemalloc does not see."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        yield lambda: 0
        return
    usual = arrow.default_memory_pool()
    counted = arrow.proxy_memory_pool(usual)
    arrow.set_memory_pool(counted)
    try:
        yield lambda: counted.max_memory() or 0
    finally:
        arrow.set_memory_pool(usual)
