"""Pausing of a container by the engine, whose freezer may fail where the machine is busy."""

from __future__ import annotations

from typing import Any

import docker.errors

from tests.waiting import until


def pause(api: Any, id_: str) -> None:
    """Pause a container; try again where the engine could not freeze it."""

    def is_paused() -> bool:
        try:
            api.pause(id_)
        except docker.errors.APIError as exc:
            if "freeze" not in str(exc):
                raise
            return False
        return True

    until(is_paused)
