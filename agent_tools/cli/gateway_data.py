"""`agent-tools keys`, `usage`, `backup` and `restore`: the keys and the data of a gateway, while it runs."""

from __future__ import annotations

import contextlib
import csv
import datetime
import re
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from agent_tools import settings
from agent_tools.cli.live_output import notes
from agent_tools.cli.options import PathOption, with_options
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.gateway.config import DATABASE, GatewayConfig, read_config
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.serving import backup as backups
from agent_tools.gateway.serving.purge import purge
from agent_tools.gateway.serving.run import opened_store
from agent_tools.text import utc_text

COLUMNS = (
    *("month", "key_name", "user_name", "owner", "runs", "seconds"),
    *("bytes_in", "bytes_out", "input_tokens", "output_tokens"),
)
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_OWNER = re.compile(r"[0-9a-f]{32}")
_limit_options = with_options(
    click.option("--max-containers", type=int, help="Containers at once.  [default: the gateway's own limit]"),
    click.option("--max-requests-per-minute", type=int, help="0 is no limit.  [default: the gateway's own limit]"),
    click.option("--volumes", metavar="NAME,NAME", help="Volumes its containers may use; '' is none.  [default: all]"),
)
_STORE = (  # where a gateway's database and files are
    partial(click.option, "--data-dir", type=PathOption(), help="The gateway's; it has the SQLite database."),
    partial(click.option, "--database", help="The gateway's SQLAlchemy URL, if it has one."),
)
_store_options = with_options(*(option() for option in _STORE))


def _remember(context: click.Context, option: click.Parameter, value: object) -> None:
    context.obj = {**(context.obj or {}), **({option.name: value} if value is not None else {})}


_any_place = with_options(*(option(expose_value=False, callback=_remember) for option in _STORE))
"""The same before and after the name of a command of `keys`; all are in the context's object."""


def found_config(**given: Any) -> GatewayConfig:
    """Return the settings of a gateway's database and files, from options or the environment."""
    given = {**settings.gateway_options(), **{name: value for name, value in given.items() if value is not None}}
    where = {name: given.get(name) for name in ("data_dir", "database")}
    return read_config({**where, "upstream": "http://not-asked"})


@click.group()
@_any_place
def keys() -> None:
    """Make, list, limit, revoke and purge keys of a gateway that has `--set named_keys=true`, while it runs.

    The database is found as `agent-tools serve` finds it: by these options, or by AGENT_TOOLS_GATEWAY_DATABASE and
    AGENT_TOOLS_GATEWAY_DATA_DIR. A change holds within seconds, in every gateway on it.
    """


@keys.command()
@click.argument("name")
@click.option("--stdin", is_flag=True, help="Name a key that is read from stdin, instead of making one.")
@click.option(
    "--for-users",
    is_flag=True,
    help="For a server of many users, such as Open WebUI, which names the user of each request.",
)
@click.option(
    "--operator", is_flag=True, help="For the operator's page: its holder may stop others' code and revoke keys."
)
@click.option("--group", help="Make no key: let users of this group sign on, with these limits (docs/sign-on.md).")
@_limit_options
@_any_place
@click.pass_obj
def add(found: dict[str, Any], /, name: str, stdin: bool, group: str | None, **given: Any) -> None:
    """Make a key called NAME and print it. It is shown this once: only its digest is kept.

    With --for-users its holder can act as any user: give the key to that server only, never to a user.
    """
    kind = {each: given.pop(each) for each in ("for_users", "operator")}
    if group is not None and (stdin or kind["for_users"]):
        raise click.UsageError("--group makes no key, so --stdin and --for-users do not go with it.")
    key = sys.stdin.readline().strip() if stdin else ""
    if stdin and not key:
        raise click.UsageError("--stdin: no key came on standard input.")
    with _opened(found, may_be_new=True) as named:
        made = named.add(name, KeyLimits(**given), key, group=group, **kind)
    if group is None:
        click.echo(made)
        if sys.stdout.isatty():  # else a program reads the key, maybe with what is on standard error
            notes.print("gateways ask for it that are served with --set named_keys=true", markup=False)
    else:
        notes.print(f"users of the group {group} are let in as {name} within seconds", markup=False)


@keys.command("list")
@_any_place
@click.pass_obj
def list_(found: dict[str, Any]) -> None:
    """List all keys, with their own limits."""
    with _opened(found) as named:
        for row in named.all():
            limits = {name: getattr(row, name) for name in vars(KeyLimits())}
            group = [f"group {row.group}"] * (row.group is not None)
            own = ", ".join(["for users"] * row.for_users + ["operator"] * row.operator + group + _shown(limits))
            ended = f"revoked {_date(row.revoked_at)}" if row.revoked_at else ""
            click.echo(f"{row.id:<24} made {_date(row.created_at)}  {ended}{own and '  '}{own}".rstrip())


@keys.command()
@click.argument("name")
@_any_place
@click.pass_obj
def revoke(found: dict[str, Any], name: str) -> None:
    """Revoke the key NAME. Its data stays until it expires, and the name cannot be used again."""
    with _opened(found) as named:
        named.revoke(name)
    notes.print(f"{name} is revoked; gateways refuse it within seconds", markup=False)


@keys.command("purge")
@click.argument("name", default="")
@click.option("--owner", default="", help="Instead of a key: a user who has signed on, by the owner in `usage`.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_any_place
@click.pass_obj
def purge_(found: dict[str, Any], name: str, owner: str, yes: bool) -> None:
    """Revoke the key NAME and delete all that it owns: responses, conversations, uploads, containers, files, variables.

    It takes about ten seconds while a gateway runs, a minute at most. The name stays in the list. Exit code 3: a
    gateway still has containers of the key; run it again. With --owner OWNER it deletes what a user owns: the identity
    provider has to lock the user out first.
    """
    if bool(name) == bool(owner):
        raise click.UsageError("Give the name of a key, or --owner of a user.")
    if owner and not _OWNER.fullmatch(owner):
        raise click.UsageError(f"--owner {owner!r:.60} is no owner: give the 32 characters that `usage` shows.")
    with _opened(found) as named:
        owned_by = owner or named.owner(name)
        if not yes:
            click.confirm(f"Delete all that {name or owner} owns? This cannot be undone", abort=True)
        if name:
            named.revoke(name)
        left = purge(found_config(**found), named.store, owned_by)
    if left:
        raise EngineError(f"{left:,} containers of {name or owner} are still in use; run this command again.")
    done = f"{name} is revoked, and all its data is deleted" if name else f"all data of {owner} is deleted"
    notes.print(done, markup=False)


@keys.command()
@click.argument("name")
@_limit_options
@_any_place
@click.pass_obj
def limit(found: dict[str, Any], /, name: str, **limits: Any) -> None:
    """Set all limits of the key NAME; a limit that is not given returns to the gateway's default."""
    with _opened(found) as named:
        named.limit(name, KeyLimits(**limits))
    own = ", ".join(_shown(limits))
    notes.print(f"{name} has {own or 'the limits of the gateway'}; gateways apply it within seconds", markup=False)


def _shown(limits: Mapping[str, int | str | None]) -> list[str]:
    """Return the limits that a key has of its own."""
    found = {name: f"{value:,}" if isinstance(value, int) else value for name, value in limits.items()}
    return [f"{name}={value or 'none'}" for name, value in found.items() if value is not None]


@contextlib.contextmanager
def _opened(found: dict[str, Any], *, may_be_new: bool = False) -> Iterator[NamedKeys]:
    """Open the keys of the gateway's database.

    Raises:
        InvalidParams: the database cannot be used, or does not exist.
    """
    config = found_config(**found)
    if not config.database and not (config.data_dir / DATABASE).exists():
        if not may_be_new:
            raise InvalidParams(f"No gateway has its database in {config.data_dir}: give its --data-dir or --database.")
        notes.print(f"{config.data_dir} has no database of a gateway yet: it is made", style="yellow", markup=False)
    store = opened_store(config)
    try:
        yield NamedKeys(store)
    finally:
        store.close()


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


@click.command()
@click.option("--month", help="A month (UTC), such as 2026-11.  [default: the current one]")
@_store_options
def usage(month: str | None, **found: Any) -> None:
    """Print what each key and each user of a gateway used in a month, as CSV. The gateway may run.

    The columns are those of the view `usage_by_month` of its database: docs/usage.md. The last seconds may be missing.
    """
    month = month or utc_text(time.time())[:7]
    if not _MONTH.fullmatch(month):
        raise click.UsageError(f"--month {month!r:.40} is no month: write one as 2026-11.")
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(COLUMNS)
    with _opened(found) as named:
        for row in named.store.usage_of(month):
            lines.writerow([_cell(row[name]) for name in COLUMNS])


def _cell(value: object) -> object:
    """Return a value as a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if str(value).startswith(("=", "+", "-", "@", "\t", "\r")) else value


@click.command()
@click.argument("folder", type=PathOption())
@_store_options
def backup(folder: Path, data_dir: Path | None, database: str | None) -> None:
    """Copy a gateway's database and files into FOLDER, which is empty or new. The gateway may run.

    The database is found as `agent-tools serve` finds it: by these options, or by AGENT_TOOLS_GATEWAY_DATABASE and
    AGENT_TOOLS_GATEWAY_DATA_DIR. PostgreSQL needs pg_dump, at least as new as the server.
    """
    backups.back_up(found_config(data_dir=data_dir, database=database), folder)
    notes.print(f"backup: {folder}; it holds what users said and their files", markup=False, soft_wrap=True)


@click.command()
@click.argument("folder", type=PathOption())
@_store_options
def restore(folder: Path, data_dir: Path | None, database: str | None) -> None:
    """Fill an empty data folder, and an empty database, from the backup in FOLDER. Nothing is overwritten.

    Run it as the gateway's user, or as root where sandboxes have users of their own, before the gateway is started.
    """
    config = found_config(data_dir=data_dir, database=database)
    backups.restore(folder, config)
    notes.print(f"restored: {config.data_dir}", markup=False, soft_wrap=True)
