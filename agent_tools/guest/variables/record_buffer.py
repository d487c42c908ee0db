"""Records: variables as pickles, one by one and yet with one memo, so that two variables share objects again.

A record is u32 length, a head as JSON, the buffers, the pickle. The head has `name`, `size` of the pickle, `buffers`
(their sizes), and `fresh` where the memo begins anew. The pickle is two: a mark, by which the memo's length is found
when a variable fails, and the value. The mark holds what functions have in common, so that it fails with none of
them. The last record has `missing` instead: names and reasons. Only a sandbox reads records (loading.py).

Arrays, frames and other objects that offer their memory (protocol 5) give it as buffers, uncopied. A function of a
cell has the session's variables as its globals, before and after: it sees later assignments, and pickles no other
variable. Functions that share a variable of the function around them share it again.
"""

import functools
import json
import pickle
import struct
import sys
import types
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import cloudpickle

HEAD = struct.Struct(">I")
MIN_BUFFER = 4096  # bytes: smaller ones stay in the pickle
NAMESPACE = "__import__('sys').modules['__main__'].__dict__"
SET_CELL = "lambda cell, value: setattr(cell, 'cell_contents', value)"
_CACHED: Any = functools._lru_cache_wrapper
_NAMES_OF_TYPES = frozenset(  # their ids: a type may be unhashable
    id(getattr(typing, name, None)) for name in ("NewType", "ParamSpec", "TypeAliasType", "TypeVarTuple")
)


class VariableTooLarge(Exception):
    """A variable has more bytes than are left."""


class RecordBuffer:
    """The bytes that one record may have, as the file that a pickler writes to."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.buffers: list[memoryview] = []
        self.left = 0

    def begin(self, most: int) -> None:
        """Forget what has been written; what follows has at most this many bytes."""
        self.pieces, self.buffers, self.left = [], [], most

    def write(self, data: Any) -> int:
        """Take in a part of the pickle."""
        size = memoryview(data).nbytes
        self._take(size)
        self.pieces.append(data)
        return size

    def add_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Store a large buffer out of band; return True if it is small and stays in the pickle."""
        view = buffer.raw()
        if view.nbytes < MIN_BUFFER:
            return True
        self._take(view.nbytes)
        self.buffers.append(view)
        return False

    def _take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise VariableTooLarge


class Globals(dict[str, Any]):
    """Stands for the session's variables where a function has them as its globals."""


class CellSetter:
    """Puts a value into a cell; pickled, it needs nothing of this project to be read."""

    def __call__(self, cell: types.CellType, value: Any) -> None:
        """Set the cell."""
        cell.cell_contents = value


class SessionPickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Pickles variables of a namespace; a failed variable has no effect on later ones."""

    memo: Any

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._room = RecordBuffer()
        super().__init__(self._room, protocol=5, buffer_callback=self._room.add_buffer)
        self._namespace = namespace
        self._is_fresh = True
        self._set_cell = CellSetter()
        self.globals_ref[id(namespace)] = Globals(__name__="__main__")

    def record(self, name: str, value: Any, most: int, limit: AbstractContextManager[None]) -> list[Any]:
        """Return a variable's record in pieces, of `most` bytes beside its head; `limit` is around pickling.

        Raises:
            VariableTooLarge: it has more bytes.
            BaseException: it cannot be pickled; exceptions of its own code are raised unchanged.
        """
        self._room.begin(most)
        mark = (self.globals_ref[id(self._namespace)], types.CodeType, self._set_cell)  # a new tuple each time
        try:
            with limit:
                self.dump(mark)
                self.dump(value)
        except BaseException:
            self._forget(mark)
            raise
        size = sum(memoryview(piece).nbytes for piece in self._room.pieces)
        sizes = [view.nbytes for view in self._room.buffers]
        head = {"name": name, "size": size, "buffers": sizes, "fresh": self._is_fresh}
        self._is_fresh = False
        return [packed(head), *self._room.buffers, *self._room.pieces]

    def _forget(self, mark: tuple[Any, ...]) -> None:
        """Take a mark, and what was noted after it, out of the memo; all of a record that was to be the first."""
        if self._is_fresh:
            self.memo = {}
            return
        memo: dict[int, tuple[int, Any]] = self.memo.copy()
        first = memo[id(mark)][0]
        self.memo = {key: noted for key, noted in memo.items() if noted[0] < first}

    def reducer_override(self, value: Any) -> Any:
        """Say how the values are made again that neither pickle nor cloudpickle takes as a session needs it."""
        if type(value) is Globals:
            return eval, (NAMESPACE,)
        if type(value) is CellSetter:
            return eval, (SET_CELL,)
        if type(value) is types.CellType and _has_content(value):
            return types.CellType, (), value.cell_contents, None, None, self._set_cell
        if type(value) is _CACHED and getattr(value, "__module__", None) == "__main__":  # cached functions of cells
            sizes = value.cache_parameters()
            parts = (value.__wrapped__, sizes["maxsize"], sizes["typed"], functools._CacheInfo)
            return _CACHED, parts, dict(vars(value))
        if id(type(value)) in _NAMES_OF_TYPES and not _can_be_imported(value):
            return _maker(value), ()
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, function: Any) -> Any:
        """Keep its cells, and leave the values of its globals out where they are the session's variables."""
        reduced = super()._dynamic_function_reduce(function)
        if function.__closure__:  # its very cells: what shares them does so again, and each comes before its content
            reduced = (reduced[0], (*reduced[1][:4], function.__closure__), *reduced[2:])
            reduced[2][1]["__closure__"] = None
        if function.__globals__ is self._namespace:
            reduced[2][1]["__globals__"] = {}
        return reduced


def _has_content(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _can_be_imported(value: Any) -> bool:
    """Return whether a module that is not the session's own has a value by its name."""
    module = value.__module__
    return module != "__main__" and getattr(sys.modules.get(module), value.__name__, None) is value


def _maker(value: Any) -> Callable[[], Any]:
    """Return what makes a name for types again."""
    kind: Any = type(value)
    if kind.__name__ == "NewType":
        return functools.partial(kind, value.__name__, value.__supertype__)
    if kind.__name__ == "TypeAliasType":
        return functools.partial(kind, value.__name__, value.__value__, type_params=value.__type_params__)
    has_default = hasattr(value, "has_default") and value.has_default()
    return functools.partial(kind, value.__name__, **({"default": value.__default__} if has_default else {}))


def packed(head: dict[str, Any]) -> bytes:
    """Return the head of a record as bytes."""
    data = json.dumps(head).encode()
    return HEAD.pack(len(data)) + data
