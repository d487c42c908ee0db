"""Requests of callers to a node, and its answers: JSON, checked by its reader.

A node uses its own engine's user, and its own labels. The allowlist of an egress policy stays with the caller, who
enforces it; the node only hears that there is one, and the environment that goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from agent_tools.engines.engine import SandboxSpec
from agent_tools.engines.first_process import environment
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import (
    EngineError,
    EngineUnavailable,
    HostFull,
    ImageBuildError,
    InvalidParams,
    SandboxStartError,
)
from agent_tools.text import neutralise

MAX_SKILLS = 1000
MAX_TEXT = 16_000  # characters of an error's text
_WITH_LOG: dict[str, type[ImageBuildError | SandboxStartError]] = {
    each.__name__: each for each in (ImageBuildError, SandboxStartError)
}
_KINDS: dict[str, type[EngineError | InvalidParams]] = {
    each.__name__: each for each in (EngineError, EngineUnavailable, HostFull, InvalidParams)
}
_SIMPLE = tuple(each.name for each in fields(Isolation) if each.name not in ("network", "env"))


def write_spec(spec: SandboxSpec, recipe: Recipe | None) -> dict[str, Any]:
    """Return the JSON value of a sandbox to start, with the recipe of its image, if it has one."""
    isolation = spec.isolation
    return {
        "image": spec.image,
        "recipe": None if recipe is None else [recipe.packages, recipe.debian_packages, recipe.flavour],
        "network": None if isolation.policy else isolation.network,
        "env": environment(isolation),
        "isolation": {name: getattr(isolation, name) for name in _SIMPLE},
        "work_dir_bytes": spec.work_dir_bytes,
        "skills": len(spec.skills),
    }


def read_spec(message: object, guest: Guest, labels: Mapping[str, str]) -> tuple[SandboxSpec, Recipe | None]:
    """Return the sandbox that a caller asks for, and the recipe of its image.

    Raises:
        InvalidParams: it is malformed.
    """
    match message:
        case {
            "image": str(image),
            "recipe": None | [_, _, _] as recipe,
            "network": (None | str()) as network,
            "env": dict(env),
            "isolation": dict(isolation),
            "work_dir_bytes": int(work_dir_bytes),
            "skills": int(skills),
        } if set(isolation) == set(_SIMPLE) and 0 <= skills <= MAX_SKILLS and work_dir_bytes >= 0:
            limits = Isolation(network=NetworkPolicy(()) if network is None else network, env=env, **isolation)
            spec = SandboxSpec(
                image=image,
                run_dir=None,
                work_dir=None,
                guest=guest,
                isolation=limits,
                labels=labels,
                work_dir_bytes=work_dir_bytes,
                skills=(Path("/"),) * skills,
            )
            return spec, None if recipe is None else Recipe.read(*recipe)
    raise InvalidParams("The node cannot read the specification of the sandbox.")


def write_error(exc: Exception) -> dict[str, Any]:
    """Return the JSON value of a failure."""
    known = {**_WITH_LOG, **_KINDS}
    kind = next((each.__name__ for each in type(exc).__mro__ if each.__name__ in known), "EngineError")
    return {"error": kind, "message": str(exc)[:MAX_TEXT], "log": str(getattr(exc, "log", ""))[-MAX_TEXT:]}


def raise_error(answer: Mapping[str, Any], node: str) -> None:
    """Raise the failure that a node answers with, if it does. What it says is untrusted text."""
    if "error" not in answer:
        return
    kind = str(answer["error"])
    message = f"{neutralise(str(answer.get('message'))[:MAX_TEXT])} (node {node})"
    if kind in _WITH_LOG:
        raise _WITH_LOG[kind](message, neutralise(str(answer.get("log"))[:MAX_TEXT]))
    raise _KINDS.get(kind, EngineError)(message)
