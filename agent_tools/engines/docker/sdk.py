"""The docker SDK, without paramiko: that is for engines reached over ssh, and is a third of what the SDK imports.

The SDK takes the class of its ssh adapter when it is imported; here it takes a function, which imports the class.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["docker"]

_SSH = "docker.transport.sshconn"


def _ssh_adapter(*args: Any, **kwargs: Any) -> Any:
    """An adapter for an engine reached over ssh."""
    try:
        from docker.transport.sshconn import SSHHTTPAdapter  # loads paramiko
    except ImportError as exc:
        raise NameError("SSHHTTPAdapter") from exc  # which the SDK takes for paramiko's not being there
    return SSHHTTPAdapter(*args, **kwargs)


def _without_ssh() -> ModuleType | None:
    """Put the function in the class's place, unless somebody else has imported the SDK."""
    if "docker" in sys.modules:
        return None
    stand_in = ModuleType(_SSH)
    stand_in.SSHHTTPAdapter = _ssh_adapter  # type: ignore[attr-defined]
    sys.modules[_SSH] = stand_in
    return stand_in


_stand_in = _without_ssh()
try:
    import docker.errors
    import docker.transport.unixconn

    import docker
finally:
    if _stand_in:
        del sys.modules[_SSH]
