"""The board for Grafana and the alarms for Prometheus: every metric and label they ask for is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent_tools.gateway.telemetry import Metrics
from tests.deploy.conftest import debian_program

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
NAME = re.compile(r"\b(?:agent_tools|process)_\w+")
LABEL = re.compile(r"by \(([^)]*)\)|\{([^}]*)\}|\{\{(\w+)\}\}")
FUNCTIONS = {"sum", "by", "rate", "increase", "histogram_quantile", "and", "le", "up", "job"}


def queries() -> Iterator[str]:
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for group in yaml.safe_load((DEPLOY / "alarms.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def known() -> dict[str, set[str]]:
    """The labels of every series there can be, by its name."""
    metrics = Metrics(dict)
    found: dict[str, set[str]] = {}
    for collector in list(metrics.registry._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            own = labels | {label for sample in family.samples for label in sample.labels}
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            for suffix in suffixes:
                found[family.name + suffix] = own | ({"le"} if suffix == "_bucket" else set())
    return found


KNOWN = known()


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_asks_for_what_is_there(query: str) -> None:
    names = set(NAME.findall(query))
    assert names <= set(KNOWN), names - set(KNOWN)
    assert names or "up{" in query
    labels = {label for name in names for label in KNOWN[name]}
    for grouped, chosen, _ in LABEL.findall(query):
        asked = re.findall(r"\w+", grouped) + re.findall(r"(\w+)\s*[=!]~?=?\s*\"", chosen)
        assert set(asked) <= labels | {"job"}, (asked, labels)
    assert query.count("(") == query.count(")")


def test_promtool_accepts_the_alarms_and_the_configuration(tmp_path: Path) -> None:
    promtool = debian_program("promtool", "prometheus")
    for name in ("prometheus.yaml", "alarms.yaml"):
        shutil.copy(DEPLOY / name, tmp_path)
    done = subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yaml"], capture_output=True, text=True)
    assert (done.returncode, "SUCCESS: 1 rule files found" in done.stdout) == (0, True), done.stdout + done.stderr
    (tmp_path / "alarms.yaml").write_text((DEPLOY / "alarms.yaml").read_text().replace("increase(", "increased("))
    assert subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yaml"], capture_output=True).returncode


def test_every_alarm_has_its_runbook() -> None:
    page = (DEPLOY.parent / "docs" / "runbook.md").read_text()
    for group in yaml.safe_load((DEPLOY / "alarms.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            url = rule["annotations"]["runbook_url"]
            assert url == f"docs/runbook.md#{rule['alert'].lower()}"
            assert f"\n### {rule['alert']}\n" in page


def test_legends_name_labels_of_their_query() -> None:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {
                name for found in re.findall(r"by \(([^)]*)\)", target["expr"]) for name in re.findall(r"\w+", found)
            }
            assert shown <= grouped, target


def test_panels_have_places_and_ids_of_their_own() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in BOARD["panels"]})


def test_every_metric_of_ours_is_on_the_board_or_in_an_alarm() -> None:
    asked = {name for query in queries() for name in NAME.findall(query)}
    ours = {re.sub(r"_(bucket|sum|count)$", "_bucket", name) for name in KNOWN if name.startswith("agent_tools_")}
    assert sorted(ours - asked) == []
