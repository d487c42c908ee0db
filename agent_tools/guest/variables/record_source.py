"""Values from the records of saving.py: one that fails costs no other, unless the other holds a part of it."""

import contextlib
import importlib
import io
import json
import operator
import pickle
import pickletools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .record_buffer import HEAD

MAX_HEAD = 64 * 1024 * 1024  # bytes: the sizes of a million buffers
Read = Callable[[int], bytearray]
"""Returns the number of bytes that was asked for."""


class LostValue:
    """Stands in the memo for what a variable would have noted that failed."""


LOST = LostValue()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class RecordSource(io.BytesIO):
    """The pickle of one record after the other, as the one file that an unpickler reads; and their buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: deque[bytearray] = deque()
        self._data = io.BytesIO()

    def begin(self, data: bytes, buffers: list[bytearray]) -> None:
        """Begin another record, skipping the rest of the last one."""
        self._data = io.BytesIO(data)
        self.buffers = deque(buffers)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some of the record."""
        return self._data.read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line of the record."""
        return self._data.readline(size)

    def readinto(self, buffer: Any, /) -> int:
        """Read some of the record into a buffer."""
        return self._data.readinto(buffer)

    def given(self) -> Iterator[bytearray]:
        """Yield the buffers as they are asked for."""
        while True:
            yield self.buffers.popleft()


_Unpickler: Any = vars(pickle)["_Unpickler"]  # the one in Python


class CarefulUnpickler(_Unpickler):
    """A slower unpickler in Python that continues after a failed variable, and rejects references to its parts."""

    dispatch = dict(_Unpickler.dispatch)  # noqa: RUF012

    def _get(self, number: int) -> None:
        if self.memo[number] is LOST:
            raise pickle.UnpicklingError("it shares a part with a variable that could not be loaded")
        self.append(self.memo[number])

    def load_binget(self) -> None:
        """Refer to what was noted."""
        self._get(self.read(1)[0])

    def load_long_binget(self) -> None:
        """Refer to what was noted, with a larger number."""
        self._get(int.from_bytes(self.read(4), "little"))

    dispatch[pickle.BINGET[0]] = load_binget
    dispatch[pickle.LONG_BINGET[0]] = load_long_binget


class SessionUnpickler:
    """Makes values of records, in their order."""

    def __init__(self) -> None:
        self._source = RecordSource()
        self._begin(pickle.Unpickler)

    def value(
        self,
        data: bytes,
        buffers: list[bytearray],
        limit: contextlib.AbstractContextManager[None],
        *,
        is_fresh: bool,
    ) -> Any:
        """Return the value of the next record; `limit` is around the code of its classes.

        Raises:
            BaseException: it cannot be made; exceptions of its own code are raised unchanged.
        """
        if is_fresh:
            self._begin(pickle.Unpickler)
        self._source.begin(data, buffers)
        mark: Any = None
        try:
            with limit:
                mark = self._unpickler.load()
                return self._unpickler.load()
        except BaseException:
            self._complete_memo(mark, data)
            raise

    def _begin(self, kind: Any) -> None:
        self._unpickler = kind(self._source, buffers=self._source.given())

    def _complete_memo(self, mark: Any, data: bytes) -> None:
        """Complete the memo as if the failed record had been read to its end."""
        memo = dict(self._unpickler.memo.copy())
        first = next((number for number, noted in memo.items() if noted is mark), len(memo))
        kept = {number: noted for number, noted in memo.items() if number <= first}
        for noted in list(_noted(data, list(kept.values()))):
            kept[len(kept)] = noted
        self._begin(CarefulUnpickler)
        self._unpickler.memo = kept


def _noted(data: bytes, own: list[Any]) -> Iterator[Any]:
    """Yield what the value of a record notes: constants and what can be imported as they are, LOST for the rest.

    A damaged record is read as far as possible: later records cannot rely on its part of the memo.
    `own` is what was noted up to the record's mark.
    """
    stack: list[Any] = []
    marks: list[int] = []
    with contextlib.suppress(ValueError, IndexError):
        for operation, argument in _operations(data):
            if operation.name == "MEMOIZE":
                own.append(stack[-1])
                yield stack[-1]
            elif operation.name == "MARK":
                marks.append(len(stack))
            elif operation.name in ("BINGET", "LONG_BINGET"):
                stack.append(own[argument])
            else:
                taken = _taken(operation, stack, marks)
                stack += [_result(operation.name, argument, taken)] * len(operation.stack_after)


def _operations(data: bytes) -> Iterator[tuple[pickletools.OpcodeInfo, Any]]:
    """Yield those of the second of two pickles."""
    source = io.BytesIO(data)
    deque(pickletools.genops(source), maxlen=0)
    for operation, argument, _ in pickletools.genops(source):
        yield operation, argument


def _taken(operation: pickletools.OpcodeInfo, stack: list[Any], marks: list[int]) -> list[Any]:
    """Take from the stack what an operation takes: all from the last mark on, or a number of objects."""
    before = operation.stack_before
    has_mark = pickletools.markobject in before
    start = marks.pop() if has_mark else len(stack)
    start -= before.index(pickletools.markobject) if has_mark else len(before)
    if start < 0:
        raise IndexError("the stack ends here")
    taken = stack[start:]
    del stack[start:]
    return taken


def _result(name: str, argument: Any, taken: list[Any]) -> Any:
    """Return what an operation puts on the stack, LOST if that is no constant."""
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name == "STACK_GLOBAL":
        return _imported(taken)
    if name.startswith("TUPLE"):
        return LOST if any(part is LOST for part in taken) else tuple(taken)
    return argument if isinstance(argument, (str, bytes, int, float)) else LOST


def _imported(names: list[Any]) -> Any:
    """Return what a module has under a name, LOST if that cannot be had."""
    try:
        module, name = names
        return operator.attrgetter(name)(importlib.import_module(module))
    except Exception:  # noqa: BLE001  (whatever a module raises that is imported)
        return LOST


def records(read: Read) -> Iterator[tuple[dict[str, Any], bytes, list[bytearray]]]:
    """Yield the heads of records, each with its pickle and its buffers; the last one is without."""
    while True:
        length = HEAD.unpack(read(HEAD.size))[0]
        if length > MAX_HEAD:
            raise ValueError("a record's head is too long")
        head = json.loads(read(length))
        if "missing" in head:
            yield head, b"", []
            return
        buffers = [read(size) for size in head["buffers"]]
        yield head, bytes(read(head["size"])), buffers
