"""A group of commands, each in a module of its own that is imported when the command is wanted.

So a command pays for no other's libraries, and a door whose extra is not installed is told as such where it is used.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

from agent_tools.extras import pip_install


class LazyGroup(click.Group):
    """A group whose commands are named, in `extras`, with the extra they need; '' for those that need none.

    The command `NAME` is `NAME` in the module `package.NAME`, or in the one that `modules` names.
    """

    def __init__(
        self,
        *args: Any,
        package: str = "",
        extras: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._extras = extras or {}
        self._modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which they were given."""
        return list(self._extras)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; in the place of one whose extra is missing, one that says which it is."""
        extra = self._extras.get(cmd_name)
        if extra is None:
            return None
        try:
            module = importlib.import_module(f"{self._package}.{self._modules.get(cmd_name, cmd_name)}")
            found: click.Command = getattr(module, cmd_name)
        except ImportError as exc:
            if not extra or (exc.name or "").startswith("agent_tools"):
                raise
            return _missing(cmd_name, extra)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; one that there is not is told with the nearest."""
        if args and not args[0].startswith("-") and args[0] not in self._extras:
            near = difflib.get_close_matches(args[0], self._extras, 1)
            if near:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


def _missing(name: str, extra: str) -> click.Command:
    said = f"`{name}` needs more: {pip_install(extra)}"
    how = f"Needs an extra: {pip_install(extra)}"

    @click.command(name, help=how, short_help=how, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, expose_value=False)
    def missing() -> None:
        raise click.ClickException(said)

    return missing
