"""Find the runtime for an engine's name, such as `docker` or `kubernetes://context`.

`docker` is built in. Any other engine comes with an extra or a package of its own, which registers a function under the
engine's name in the entry point group `agent_tools.engines`: it takes the whole text and returns a runtime.

    docker          the Docker engine in DOCKER_HOST, or of this machine
    NAME            any other engine that is installed: `ray`, `kubernetes`
    NAME://ADDRESS  the same, at an address: `ray://head:10001`
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from agent_tools import settings
from agent_tools.errors import EngineUnavailable, InvalidParams
from agent_tools.extras import pip_install

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

DOCKER = "docker"
GROUP = "agent_tools.engines"
EXTRAS = {"ray": "ray", "kubernetes": "kubernetes"}
"""The known engines, and the extra that each needs."""

_WORD = re.compile(r"([a-z][a-z0-9_-]{0,39})(://[!-~]{1,200})?")


def checked_engine(word: object) -> str:
    """Check the name of an engine without loading it.

    Raises:
        InvalidParams: it is malformed, or the engine is unknown.
    """
    if not isinstance(word, str) or not (match := _WORD.fullmatch(word)):
        raise InvalidParams(
            f"engine={word!r:.80} is not usable: give {_known()}, or one with an address: 'ray://head:10001'."
        )
    if match[1] == DOCKER and match[2]:
        raise InvalidParams(
            f"engine={word!r:.80} is not usable: set DOCKER_HOST to choose the address of a Docker engine."
        )
    if match[1] != DOCKER and match[1] not in EXTRAS and _installed(match[1]) is None:
        if match[1] == "podman":
            raise InvalidParams(
                f"engine={word!r:.80} is not needed: Podman speaks Docker's API. Leave engine out, start "
                "podman.socket, and set DOCKER_HOST, e.g. unix:///run/user/1000/podman/podman.sock (docs/engines.md)."
            )
        raise InvalidParams(f"engine={word!r:.80} is unknown: use {_known()}.")
    return word


def shared_runtime(engine: str | None = None) -> Runtime:
    """Return the runtime that tools of this process share on an engine; that of AGENT_TOOLS_ENGINE for None.

    Raises:
        InvalidParams: there is no such engine.
        EngineUnavailable: it is not installed. It is never replaced by another one.
    """
    word = checked_engine(engine or settings.engine())
    with _lock:
        if word not in _runtimes:
            _runtimes[word] = _new_runtime(word)
        return _runtimes[word]


_runtimes: dict[str, Runtime] = {}
_lock = threading.RLock()  # an engine may be made of another one


def _new_runtime(word: str) -> Runtime:
    if word == DOCKER:
        from agent_tools.runtime.runtime import docker_runtime  # loads docker

        return docker_runtime()
    name = word.partition("://")[0]
    entry = _installed(name)
    if entry is None:
        raise EngineUnavailable(
            f"The engine {name!r} is not installed here. It needs the extra {EXTRAS[name]!r} "
            f"({pip_install(EXTRAS[name])}), in releases that have it."
        )
    try:
        factory: Callable[..., Runtime] = entry.load()
    except ImportError as exc:
        extra = EXTRAS.get(name, name)
        raise EngineUnavailable(f"The engine {name!r} cannot be loaded ({exc}): {pip_install(extra)}.") from exc
    return factory(word)


def preparing() -> str:
    """Return the last line of progress of an image that this process pulls, builds or waits for; '' without one."""
    # slow to import; if not imported, no image is being prepared
    image = sys.modules.get("agent_tools.engines.docker.image")
    return str(image.preparing()) if image else ""


def _installed(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)


def _known() -> str:
    names = sorted({DOCKER, *EXTRAS, *(entry.name for entry in entry_points(group=GROUP))})
    return ", ".join(repr(name) for name in names)
