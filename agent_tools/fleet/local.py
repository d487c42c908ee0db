"""Hosts in threads of this process: a fleet without a network, for one machine and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agent_tools.errors import AgentToolsError
from agent_tools.fleet.fleet import Fleet
from agent_tools.fleet.protocol import HostLink, HostUnreachable
from agent_tools.fleet.sandbox_host import SandboxHost
from agent_tools.machine.rounds import begun


class LocalLink:
    """A host of this process, called directly. After `vanish` it does not answer."""

    def __init__(self, name: str, host: SandboxHost) -> None:
        self.host = host
        self._name = name
        self._is_gone = False

    @property
    def name(self) -> str:
        """The host's name."""
        return self._name

    def vanish(self) -> None:
        """End the host, as the loss of its machine would."""
        self._is_gone = True
        self.host.close_all()

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method of the host. Raises HostUnreachable once it has vanished."""
        self._answer()
        try:
            return getattr(self.host, method)(*arguments)
        finally:
            self._answer()

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method in a thread, without waiting."""

        def work() -> None:
            with suppress(AgentToolsError, OSError):
                self.call(method, *arguments)

        if begun(work) is None:
            work()

    def _answer(self) -> None:
        if self._is_gone:
            raise HostUnreachable(f"the host {self._name} has vanished", is_final=True)


class LocalHosts:
    """Hosts of this process."""

    def __init__(self, *links: LocalLink) -> None:
        self._links = links

    def links(self) -> Sequence[HostLink]:
        """Return them."""
        return self._links

    def close(self) -> None:
        """End the hosts, which have no other callers."""
        for link in self._links:
            link.host.close_all()


def local_fleet(*hosts: SandboxHost, patience: float = 60.0, copies_files: bool = True) -> Fleet:
    """Return a fleet of hosts of this process."""
    links = [LocalLink(f"local-{number}", host) for number, host in enumerate(hosts)]
    return Fleet(LocalHosts(*links), patience=patience, copies_files=copies_files)
