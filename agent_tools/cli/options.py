"""The options shared by every command that runs code, and the tool made from them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from agent_tools.cli.output_file import written
from agent_tools.engines.isolation import Wall
from agent_tools.engines.recipe import FLAVOURS
from agent_tools.errors import InvalidParams
from agent_tools.limits import size_of
from agent_tools.sandbox.options import read_options
from agent_tools.tools.code_interpreter import CodeInterpreter

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes, with an optional k, m, g or t."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Turn '512m' into bytes."""
        size = size_of(value)
        if not isinstance(size, int):
            self.fail(f"{value!r} is not a size; write e.g. 512m or 2g.", param, ctx)
        return size


class PathOption(click.Path):
    """A path. An empty one, such as from an unset shell variable, is an error; click would use this folder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turn text into a path."""
        if value == "":
            self.fail("it is empty; give a path, '.' for this folder.", param, ctx)
        return super().convert(value, param, ctx)


def with_options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command."""

    def decorated(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return decorated


_RECIPE = (
    click.option("--flavour", type=click.Choice(FLAVOURS), help="The packages in the image.  [default: lean]"),
    click.option("--package", "packages", multiple=True, help="A further package for the image; repeatable."),
    click.option("--debian-package", "debian_packages", multiple=True, help="A further Debian package; repeatable."),
)


def _absolute(_: click.Context, __: click.Parameter, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return folders as absolute paths, since `mcp config` writes them for clients with another current folder."""
    return tuple(os.path.abspath(os.path.expanduser(folder)) for folder in folders)


def absolute(_: click.Context, __: click.Parameter, path: Path | str | None) -> Path | str | None:
    """Return a path as an absolute one, for the same reason; '-' is standard output."""
    return path if path in (None, "", "-") else type(path)(os.path.abspath(os.path.expanduser(path)))


def _keys(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return keys; `@FILE` stands for those in the lines of a file."""
    found = list[str]()
    for each in given:
        if not each.startswith("@"):
            found.append(each)
            continue
        try:
            found += Path(each[1:]).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as exc:
            raise click.BadParameter(f"{each[1:]} cannot be read: name a file with a key in each line.") from exc
    return tuple(found)


def api_key_option(environment: str) -> Callable[[Command], Command]:
    """Return --api-key; `environment` is the variable for the same."""
    return click.option(
        "--api-key",
        "api_keys",
        multiple=True,
        metavar="KEY|@FILE",
        callback=_keys,
        help="A key that clients may use, or a file with one in each line; repeatable. Every user of this machine can "
        f"read a KEY in the list of processes: better give @FILE or set {environment}.",
    )


SKILLS_OPTION = click.option(
    "--skills",
    multiple=True,
    metavar="DIR",
    callback=_absolute,
    help="A folder of an Agent Skill, or of several; repeatable.",
)
_WALL = (
    click.option("--isolation", type=click.Choice(get_args(Wall)), help="A container, or gVisor's own kernel."),
    click.option("--oci-runtime", "runtime", help="An OCI runtime of the engine by its name, e.g. kata."),
)
wall_options = with_options(*_WALL)
_OPTIONS = (
    click.option("--work-dir", type=PathOption(), help="Folder shared with the sandbox.  [default: ./workspace/…]"),
    click.option("--memory", type=Size(), help="Memory limit, e.g. 2g.  [default: 2g]"),
    click.option("--cpus", type=float, help="CPU cores.  [default: 1]"),
    click.option("--network", help="'none', or a network of the engine, e.g. 'bridge'.  [default: none]"),
    click.option(
        "--allow", multiple=True, help="A host that the code may reach, e.g. pypi or api.example.com; repeatable."
    ),
    SKILLS_OPTION,
    *_RECIPE,
    *_WALL,
)
set_option = click.option(
    "--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other option or limit, e.g. pids=64; repeatable."
)


recipe_options = with_options(*_RECIPE)
sandbox_options = with_options(*_OPTIONS, set_option)
limit_options = with_options(*_OPTIONS[1:])  # without the folder, which is chosen in another way
notebook_option = click.option(
    "--notebook",
    type=PathOption(dir_okay=False),
    metavar="OUT.ipynb",
    help="Write the code and its outputs to this Jupyter notebook at the end.",
)


def write_notebook(path: Path, notebook: Mapping[str, Any], work_dir: Path) -> None:
    """Write a notebook, as Jupyter does. Code could write to `work_dir`.

    Raises:
        ClickException: it cannot be written.
    """
    try:
        with written(path, work_dir) as file:
            file.write(f"{json.dumps(notebook, ensure_ascii=False, indent=1)}\n".encode("utf-8", "replace"))
    except OSError as exc:
        raise click.ClickException(f"The notebook was not written to {path}: {exc.strerror}") from exc


def given(context: click.Context, for_servers: Collection[str] = ()) -> tuple[str, ...]:
    """Return the options of a command line again, for the configuration of a client that starts the command.

    Raises:
        click.UsageError: one of them is `for_servers`, which no client starts.
    """
    found = list[str]()
    for param in context.command.params:
        name = str(param.name)
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if name in for_servers:
            raise click.UsageError(
                f"{param.opts[0]} is for a server that runs already, but clients start this one: leave it out."
            )
        value = context.params[name]
        for each in value if isinstance(value, tuple) else (value,):
            found += [param.opts[0]] if value is True else [param.opts[0], str(each)]
    return tuple(found)


def pair(text: str) -> tuple[str, str]:
    """Return the name and the value of a setting that is given as NAME=VALUE.

    Raises:
        InvalidParams: it is not.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidParams(f"--set {text!r:.60}: write NAME=VALUE.")
    return name.strip().replace("-", "_"), value


def config(**options: Any) -> dict[str, Any]:
    """Return the given options as a configuration for `Sandbox`.

    Raises:
        click.UsageError: two of them do not go together.
        InvalidParams: one of `others`, NAME=VALUE, is not usable.
    """
    others = read_options(options.pop("others", ()))
    for name in ("packages", "debian_packages", "skills"):
        options[name] = list(options.get(name) or ())
    if allow := options.pop("allow", ()):
        if options.get("network"):
            raise click.UsageError("Give --network or --allow, not both.")
        options["network"] = {"allow": list(allow)}
    if options.get("work_dir") is not None:
        options["work_dir"] = str(options["work_dir"])
    if "limits" in options and "limits" in others:
        others["limits"] = {**options["limits"], **others["limits"]}
    return {**{name: value for name, value in options.items() if value not in (None, [])}, **others}


def interpreter(**options: Any) -> CodeInterpreter:
    """Return a tool made from the options that were given."""
    return CodeInterpreter(config(**options))
