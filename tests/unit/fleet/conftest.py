"""A fleet of two hosts in this process, whose every message is pickled on its way, as over a network."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_tools import Sandbox
from agent_tools.fleet import Fleet, SandboxHost
from agent_tools.fleet.local import LocalHosts, LocalLink
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine


class PicklingLink(LocalLink):
    """Lets nothing pass that does not cross as bytes, arguments, answers and exceptions alike."""

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        try:
            return crossed(super().call(method, *crossed(arguments), seconds=seconds))
        except Exception as exc:
            raise crossed(exc) from None


def crossed(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def process_host(slots: int = 4, **options: Any) -> SandboxHost:
    return SandboxHost(Runtime(ProcessEngine(), lambda recipe: "none"), slots, **options)


class Rig:
    """A fleet, its links, and the sandboxes that were opened."""

    def __init__(self, links: list[PicklingLink], **options: Any) -> None:
        self.links = links
        self.fleet = Fleet(LocalHosts(*links), **options)
        self.opened: list[Sandbox] = []

    def sandbox(self, cfg: dict[str, Any] | None = None, **options: Any) -> Sandbox:
        self.opened.append(Sandbox(cfg, runtime=self.fleet, **options))
        return self.opened[-1]

    def link_of(self, sandbox: Sandbox) -> PicklingLink:
        assert sandbox.container
        return next(link for link in self.links if link.name == sandbox.container.id.split("/")[0])

    def close(self) -> None:
        for sandbox in self.opened:
            sandbox.close()
        self.fleet.disconnect()


@pytest.fixture
def new_rig() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*slots: int, lease: float = 20.0, **options: Any) -> Rig:
        links = [PicklingLink(f"host-{n}", process_host(count, lease=lease)) for n, count in enumerate(slots or (4, 4))]
        made.append(Rig(links, lease=lease, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(new_rig: Callable[..., Rig]) -> Rig:
    return new_rig()
