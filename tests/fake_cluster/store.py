"""The objects of the fake cluster, with those who watch them. Thread-safe."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

Object = dict[str, Any]


class Store:
    """Objects of one kind, by name. `loop` is that of the watchers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[str, Object] = {}
        self._watchers: dict[asyncio.Queue[Object], tuple[asyncio.AbstractEventLoop, str, str]] = {}
        self._versions = itertools.count(1)

    def add(self, body: Object) -> bool:
        """Keep an object; False if there is one of its name."""
        with self._lock:
            name = body["metadata"]["name"]
            if name in self._objects:
                return False
            self._objects[name] = body
            self._tell("ADDED", body)
            return True

    def find(self, name: str) -> Object | None:
        """The object of this name."""
        with self._lock:
            return self._objects.get(name)

    def change(self, name: str, status: Object) -> None:
        """Give an object another status."""
        with self._lock:
            if found := self._objects.get(name):
                found["status"] = status
                self._tell("MODIFIED", found)

    def remove(self, name: str) -> Object | None:
        """Forget an object, and return it."""
        with self._lock:
            found = self._objects.pop(name, None)
            if found:
                self._tell("DELETED", found)
            return found

    def selected(self, labels: str = "", fields: str = "") -> list[Object]:
        """The objects that these selectors choose."""
        with self._lock:
            return [each for each in self._objects.values() if chosen(each, labels, fields)]

    def watch(self, labels: str, fields: str) -> asyncio.Queue[Object]:
        """A queue of events, that begins with what is there."""
        queue: asyncio.Queue[Object] = asyncio.Queue()
        with self._lock:
            for each in self.selected(labels, fields):
                queue.put_nowait({"type": "ADDED", "object": public(each)})
            self._watchers[queue] = (asyncio.get_running_loop(), labels, fields)
        return queue

    def unwatch(self, queue: asyncio.Queue[Object]) -> None:
        """Send no more events."""
        with self._lock:
            self._watchers.pop(queue, None)

    def _tell(self, kind: str, body: Object) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        for queue, (loop, labels, fields) in self._watchers.items():
            if chosen(body, labels, fields):
                loop.call_soon_threadsafe(queue.put_nowait, {"type": kind, "object": public(body)})


def public(body: Object) -> Object:
    """An object as it is shown."""
    return {key: value for key, value in body.items() if key != "container"}


def chosen(body: Object, labels: str, fields: str) -> bool:
    """Whether selectors choose an object: NAME=VALUE of labels, NAME!=VALUE of the phase, or metadata.name=VALUE."""
    own = body["metadata"].get("labels", {})
    has_labels = all(own.get(key) == value for key, _, value in (each.partition("=") for each in _parts(labels)))
    name, phase = body["metadata"]["name"], body.get("status", {}).get("phase")
    return has_labels and all(
        phase != each.partition("!=")[2] if "!=" in each else name == each.partition("=")[2] for each in _parts(fields)
    )


def _parts(selector: str) -> list[str]:
    return [part for part in selector.split(",") if part]
