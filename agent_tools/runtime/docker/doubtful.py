"""Containers that were given up while they were being made: only their names are known, and they may still turn up."""

from __future__ import annotations

import contextlib
import time

import requests

from agent_tools.errors import EngineError
from agent_tools.runtime.docker.connection import DockerConnection
from agent_tools.runtime.docker.sdk import docker
from agent_tools.runtime.engine import SandboxSpec
from agent_tools.runtime.host.owner import NAME_LABEL

DOUBT_SECONDS = 600  # how long one may turn up
LOOK_SECONDS = 5  # how long the engine may take to say so: what it did not answer before, it may not answer now


class Doubtful:
    """Removes them as soon as they are there."""

    def __init__(self, connection: DockerConnection) -> None:
        self._connection = connection
        self._names: dict[str, float] = {}

    def add(self, spec: SandboxSpec) -> None:
        """Note that what was being made by this spec was given up."""
        self._names[spec.labels.get(NAME_LABEL, "")] = time.monotonic()
        self.remove()

    def remove(self) -> None:
        """Remove those that have turned up; an engine that does not answer is asked again later."""
        for name, since in list(self._names.items()):
            if time.monotonic() > since + DOUBT_SECONDS:
                self._names.pop(name, None)
        if not self._names:
            return
        failures = (docker.errors.DockerException, requests.RequestException, OSError, EngineError)
        with contextlib.suppress(*failures), contextlib.closing(self._connection.new_client(LOOK_SECONDS)) as client:
            for name in list(self._names):
                for found in client.api.containers(all=True, filters={"label": [f"{NAME_LABEL}={name}"]}):
                    client.api.remove_container(found["Id"], force=True, v=True)
                    self._names.pop(name, None)
