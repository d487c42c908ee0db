"""An engine over nodes: each sandbox runs on one of them, and its stdio is a connection to that node.

A node shares no folder with this machine, so files are copied, as with every engine on another machine. A start goes to
the node with the smallest part of its slots taken by this process; one that is full or does not answer is passed over.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agent_tools.engines.context import tag_for
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.ray.greeting import read_message, send_message
from agent_tools.engines.ray.link import GREETING_SECONDS, MAX_ANSWER, LinkStdio
from agent_tools.engines.ray.node import NodeEndpoint
from agent_tools.engines.ray.node_keys import SILENCE_SECONDS, calling_tls, prepare
from agent_tools.engines.ray.request import raise_error, write_spec
from agent_tools.engines.recipe import Recipe, RecipeLike, recipe_of
from agent_tools.errors import EngineError, EngineUnavailable, HostFull, SandboxStartError
from agent_tools.text import neutralise
from agent_tools.version import __version__

SLOT_TIMEOUT = 60.0  # that a start waits for a slot where all nodes are full
START_SECONDS = 3600.0  # for one answer: a node may have to build the image first
SKIP_SECONDS = 10.0  # in which a node that did not answer is asked only if there is no other
LOOK_SECONDS = 0.25  # between two tries where all nodes are full
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class NodeUnreachable(EngineUnavailable):
    """A node does not answer, or not as this release does."""


class Nodes(Protocol):
    """Finds the nodes."""

    def endpoints(self) -> Sequence[NodeEndpoint]:
        """Return all nodes that there are. Raises EngineUnavailable."""
        ...

    def doubt(self, endpoint: NodeEndpoint) -> None:
        """Look anew at a node that did not answer."""
        ...


class NodesEngine:
    """Implements the Engine protocol. Thread-safe.

    Args:
        nodes: finds the nodes.
        timeout: seconds that a start waits for a slot where all nodes are full.
    """

    def __init__(self, nodes: Nodes, timeout: float = SLOT_TIMEOUT) -> None:
        self._nodes, self._timeout = nodes, timeout
        self._recipes: dict[str, Recipe] = {}
        self._lock = threading.Lock()
        self._places: dict[str, NodeEndpoint] = {}  # of each sandbox of this process
        self._skipped: dict[str, float] = {}  # until when, by name

    def image_of(self, recipe: RecipeLike) -> str:
        """Return the tag of a recipe's image, which each node builds when it first needs it."""
        recipe = recipe_of(recipe)
        tag = tag_for(recipe)
        self._recipes[tag] = recipe
        return tag

    # -- the Engine protocol ------------------------------------------------------------------------------------------

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return this process's user: a node chooses the user inside, and files are copied.

        Raises:
            EngineUnavailable: without a work_dir, the nodes are looked for, and there are none.
        """
        if work_dir is None:
            self._endpoints()
        return Guest.own(shares=False)

    def start(self, spec: SandboxSpec) -> EngineContainer:
        """Start a sandbox on a node, and connect to it.

        Raises:
            HostFull: no slot became free in time.
            EngineUnavailable: no node answers.
            SandboxStartError: the node's engine lacks something that the spec asks for.
        """
        if spec.volumes:
            raise SandboxStartError("Sandboxes on Ray have no volumes: leave out the option `volumes`.")
        deadline, is_first = time.monotonic() + self._timeout, True
        while True:
            outcome = self._try_all(spec)
            if isinstance(outcome, EngineContainer):
                return outcome
            if not isinstance(outcome, HostFull):
                if not is_first:
                    raise outcome
                is_first = False  # their processes may be others by now, which are found anew
                continue
            if time.monotonic() > deadline:
                raise HostFull(
                    f"All nodes are full; one of them said: {outcome} Waited {self._timeout:g} s. Close sandboxes, or "
                    "add nodes."
                ) from outcome
            time.sleep(LOOK_SECONDS)

    def remove(self, sandbox: EngineContainer) -> None:
        """Hang up, which ends the sandbox."""
        with self._lock:
            self._places.pop(sandbox.id, None)
        if isinstance(sandbox.stdio, LinkStdio):
            sandbox.stdio.hang_up()

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        """Return the output of a sandbox that ended at its start, as its node says; None while its stream is open."""
        if isinstance(sandbox.stdio, LinkStdio) and not sandbox.stdio.has_ended:
            return None
        endpoint = self._places.get(sandbox.id)
        if endpoint is None:
            return "it was removed"
        request = {"op": "last_words", "id": sandbox.id.partition("/")[2], "spec": self._written(spec)}
        try:
            connection, answer = self._asked(endpoint, request)
        except EngineError as exc:
            return f"the connection to its node ended: {exc}"
        connection.close()
        words = answer.get("words")
        return neutralise(words) if isinstance(words, str) else "the connection to its node ended"

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        """Return none: each node removes its own remains."""
        return ()

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _try_all(self, spec: SandboxSpec) -> EngineContainer | EngineError:
        """Try the nodes, the emptiest first; return a sandbox, or else the problem of one of them: full, if one is."""
        problems: list[EngineError] = []
        for endpoint in self._in_turn():
            found = self._tried(endpoint, spec)
            if isinstance(found, EngineContainer):
                return found
            problems.append(found)
        return next((each for each in problems if isinstance(each, HostFull)), problems[0])

    def _tried(self, endpoint: NodeEndpoint, spec: SandboxSpec) -> EngineContainer | HostFull | EngineUnavailable:
        try:
            return self._start_on(endpoint, spec)
        except HostFull as exc:
            return exc
        except EngineUnavailable as exc:  # the node, or its engine, does not answer
            self._skip(endpoint)
            return exc

    def _start_on(self, endpoint: NodeEndpoint, spec: SandboxSpec) -> EngineContainer:
        connection, answer = self._asked(endpoint, {"op": "start", "spec": self._written(spec)})
        id_ = answer.get("id")
        if not isinstance(id_, str) or not _ID.fullmatch(id_):
            connection.close()
            raise NodeUnreachable(f"The node {endpoint.name} gave an unusable answer.")
        container = EngineContainer(f"{endpoint.name}/{id_}", LinkStdio(connection, f"the node {endpoint.name}"))
        with self._lock:
            self._places[container.id] = endpoint
        return container

    def _written(self, spec: SandboxSpec) -> dict[str, Any]:
        return write_spec(spec, self._recipes.get(spec.image))

    def _asked(self, endpoint: NodeEndpoint, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Connect to a node, and send a request; return the connection and the answer.

        Raises:
            NodeUnreachable: it does not answer, or has another release.
            EngineError: it failed.
        """
        if endpoint.release != __version__:
            raise NodeUnreachable(
                f"The node {endpoint.name} has release {endpoint.release} of agent-tools, and this process has "
                f"{__version__}: install the same one, then run `agent-tools fleet down`."
            )
        with contextlib.ExitStack() as undo:
            try:
                plain = socket.create_connection((endpoint.host, endpoint.port), GREETING_SECONDS)
                undo.callback(plain.close)
                prepare(plain)
                connection = calling_tls(endpoint.certificate).wrap_socket(plain, suppress_ragged_eofs=False)
                undo.callback(connection.close)
                connection.sendall(endpoint.token.encode())
                send_message(connection, request)
                answer, until = None, time.monotonic() + START_SECONDS
                while answer is None:
                    answer = read_message(connection, MAX_ANSWER, min(until, time.monotonic() + SILENCE_SECONDS))
            except OSError as exc:
                raise NodeUnreachable(f"The node {endpoint.name} does not answer ({exc}).") from exc
            raise_error(answer, endpoint.name)
            undo.pop_all()
        return connection, answer

    def _endpoints(self) -> Sequence[NodeEndpoint]:
        found = self._nodes.endpoints()
        if not found:
            raise EngineUnavailable(
                "No node of the Ray cluster has sandboxes: start one with `ray start ... "
                "--resources='{\"sandbox\": 20}'`."
            )
        return found

    def _in_turn(self) -> list[NodeEndpoint]:
        """Return the nodes, the emptiest first by this process's sandboxes; skipped ones only if all are."""
        found = list(self._endpoints())
        random.shuffle(found)
        now = time.monotonic()
        with self._lock:
            mine = Counter(endpoint.name for endpoint in self._places.values())
            answering = [each for each in found if self._skipped.get(each.name, 0.0) <= now]
        return sorted(answering or found, key=lambda each: mine[each.name] / max(1, each.slots))

    def _skip(self, endpoint: NodeEndpoint) -> None:
        with self._lock:
            self._skipped[endpoint.name] = time.monotonic() + SKIP_SECONDS
        self._nodes.doubt(endpoint)
