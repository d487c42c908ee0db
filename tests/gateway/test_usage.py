"""Usage by key and user: what is counted, where it is kept, and how an operator reads it."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.containers.failures import RowsAway
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.requests.auth import RequestKeys
from agent_tools.gateway.store.records import UsageRow
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.store.tables import USAGE_BY_MONTH
from agent_tools.gateway.usage import UsageMeter
from agent_tools.models.base import Usage
from agent_tools.sandbox.audit import RunEnd
from tests.gateway.asking import CODE_TOOL, code
from tests.gateway.conftest import Gateway, NewGateway
from tests.identity_provider import IdentityProvider

COLUMNS = [each.name for each in fields(ContainerRecord)]
DAY = 1_795_953_600.0  # 2026-11-29T12:00:00Z


def printed(gateway: Gateway, *options: str) -> list[dict[str, str]]:
    gateway.services.usage.flush()
    done = CliRunner().invoke(cli, ["usage", "--data-dir", str(gateway.services.config.data_dir), *options])
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_the_sums_are_those_of_the_audit_log(new_gateway: NewGateway, work_dir: Path) -> None:
    audit = work_dir / "audit.jsonl"
    with IdentityProvider() as provider:
        script = [code("1"), code("1/0"), "Done."]
        settings = {**provider.settings, "audit": str(audit), "named_keys": True}
        gateway = new_gateway({"m": script * 3}, **settings)
        named = NamedKeys(gateway.services.store)
        keys = {"alice": named.add("alice", KeyLimits()), "ann": provider.token("ann"), "=bob": provider.token("=bob")}
        named.read_into(gateway.services.keys)
        for key in keys.values():
            gateway.client(key).responses.create(model="m", input="Go.", tools=[CODE_TOOL])  # type: ignore[list-item]
        owner = gateway.services.keys.caller({"authorization": f"Bearer {keys['alice']}"}).owner
        row = gateway.services.containers.create(owner, ContainerSpec("c", origin="u-0123456789abcd"))
        with gateway.services.containers.use(row.id) as (sandbox, _):
            sandbox.run_command("true")
        found = printed(gateway)
    sums: dict[tuple[str, str], Counter[str]] = {}
    for line in map(json.loads, audit.read_text().splitlines()):
        if line["event"].endswith("ended"):
            user = line.get("user", line["origin"] if line["origin"].startswith("u-") else "")
            used = {"runs": 1, "seconds": round(line["duration"] * 1_000), "in": line.get("bytes_in", 0)}
            sums.setdefault((line["key"], user), Counter()).update(used)
    assert {
        (each["key_name"], each["user_name"].lstrip("'")): (int(each["runs"]), round(float(each["seconds"]) * 1_000))
        for each in found
    } == {place: (each["runs"], each["seconds"]) for place, each in sums.items()}
    assert sum(int(each["bytes_in"]) for each in found) == sum(each["in"] for each in sums.values())
    tokens = {each["user_name"]: (int(each["input_tokens"]) > 0, int(each["output_tokens"]) > 0) for each in found}
    assert tokens == {"": (True, True), "ann": (True, True), "'=bob": (True, True), "u-0123456789abcd": (False, False)}
    registry = gateway.services.metrics.registry
    for key in ("alice", "sign-on"):
        runs = sum(int(each["runs"]) for each in found if each["key_name"] == key)
        assert registry.get_sample_value("agent_tools_key_runs_total", {"key": key}) == runs
    assert '"ann"' not in gateway.services.metrics.text().decode()
    assert printed(gateway, "--month", "2001-01") == []


class Away:
    """A store that cannot be written while `is_away`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = True

    def increase(self, record: UsageRow, *names: str) -> None:
        if self.is_away:
            raise RowsAway
        self._store.increase(record, *names)


def test_what_cannot_be_written_is_written_later_and_days_are_rows(work_dir: Path) -> None:
    store, now = Store(f"sqlite:///{work_dir}/s.db"), [DAY]
    keys = RequestKeys(["key-of-mine"])
    owner, away = keys.caller({"authorization": "Bearer key-of-mine"}).owner, Away(store)
    meter: Any = UsageMeter(cast("Store", away), keys, lambda: now[0])
    row = ContainerRecord(**{**dict.fromkeys(COLUMNS, 0), "id": "c", "owner": owner, "origin": "u-0123456789abcd"})
    for at in (DAY, DAY, DAY + 86_400):
        now[0] = at
        meter.ran(row, {"key": "a", "user": ""}, RunEnd(1_001, 5, 7))
        meter.asked(owner, Usage(3, 2))
        with pytest.raises(RowsAway):
            meter.flush()
    away.is_away = False
    meter.flush()
    meter.ran(row, {"key": "a", "user": ""}, RunEnd(1))
    meter.flush()
    meter.flush()
    assert sorted(
        (each.day, each.user_name, each.runs, each.milliseconds, each.input_tokens) for each in store.find(UsageRow)
    ) == [
        ("2026-11-29", "", 0, 0, 6),
        ("2026-11-29", "u-0123456789abcd", 2, 2_002, 0),
        ("2026-11-30", "", 0, 0, 3),
        ("2026-11-30", "u-0123456789abcd", 2, 1_002, 0),
    ]
    store.close()


def test_the_page_shows_the_view_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "usage.md").read_text()
    assert " ".join(USAGE_BY_MONTH.split()) in " ".join(page.split())


def test_a_month_that_is_none_is_refused(work_dir: Path) -> None:
    for month in ("2026-13", "2026-1", "november", "2026-11'"):
        done = CliRunner().invoke(cli, ["usage", "--month", month, "--data-dir", str(work_dir)])
        assert done.exit_code == 2
        assert "2026-11" in done.output
