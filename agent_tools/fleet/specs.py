"""The makings of a session without anything of the caller's machine in them.

An image is made where it is used, so a recipe crosses in the place of a tag, as a word of its own: `recipe:{...}`.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from agent_tools.errors import InvalidParams
from agent_tools.fleet.crossing import RemoteSpec
from agent_tools.runtime.network import NetworkPolicy
from agent_tools.runtime.recipe import Recipe, RecipeLike, recipe_of
from agent_tools.runtime.sandbox.spec import SessionSpec

_PREFIX = "recipe:"


def image_word(recipe: RecipeLike) -> str:
    """Return the word for the image of a recipe."""
    return _PREFIX + json.dumps(asdict(recipe_of(recipe)))


def remote_spec(spec: SessionSpec) -> RemoteSpec:
    """Return the makings that cross.

    Raises:
        InvalidParams: something in them belongs to this machine, or needs it.
    """
    policy = spec.isolation.network
    if isinstance(policy, NetworkPolicy) and policy.packages_cache:
        raise InvalidParams("packages_cache is a folder of this machine, and the sandbox is on another: leave it out.")
    calls = spec.host_calls
    if calls and calls.limits.allow_outside_run:
        raise InvalidParams("allow_outside_run does not go with a sandbox on another machine: leave it out.")
    recipe = spec.image.startswith(_PREFIX)
    return RemoteSpec(
        spec.isolation,
        spec.limits,
        "" if recipe else spec.image,
        Recipe.read(**json.loads(spec.image[len(_PREFIX) :])) if recipe else Recipe(),
        spec.transport,
        spec.checkpoint,
        spec.idle_stop,
        spec.prelude,
        spec.ahead.preload,
        calls.limits if calls else None,
    )
