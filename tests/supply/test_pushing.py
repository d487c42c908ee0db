"""An image is pushed under its fingerprint, and what a registry says against it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_tools.engines.context import tag_for
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import EngineError
from supply.release import push

FINGERPRINT = tag_for().partition(":")[2]


class Engine:
    """An engine that has the image; its registry says `lines`."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines = lines
        self.tagged: list[tuple[str, ...]] = []
        self.removed: list[str] = []
        self.connection = self

    def has_image(self, tag: str) -> bool:
        return True

    def api(self, is_patient: bool) -> Engine:
        assert is_patient
        return self

    def remove_image(self, tag: str) -> None:
        self.removed.append(tag)

    def tag(self, *names: str) -> None:
        self.tagged.append(names)

    def push(self, repository: str, tag: str, *, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        self.tagged.append((repository, tag))
        yield from self.lines


def test_it_goes_under_its_fingerprint() -> None:
    engine = Engine({"status": "Pushing"})
    assert push(engine, "registry.example.com/a", Recipe()) == f"registry.example.com/a:{FINGERPRINT}"  # type: ignore[arg-type]
    assert engine.tagged == [
        (tag_for(), "registry.example.com/a", FINGERPRINT),
        ("registry.example.com/a", FINGERPRINT),
    ]


def test_a_registry_that_refuses_is_told_and_the_name_for_it_goes() -> None:
    engine = Engine({"status": "Preparing"}, {"error": "denied"})
    with pytest.raises(EngineError, match="could not be pushed: denied"):
        push(engine, "registry.example.com/a", Recipe())  # type: ignore[arg-type]
    assert engine.removed == [f"registry.example.com/a:{FINGERPRINT}"]
