"""The output of `agent-tools doctor --probe`: a table of findings, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_tools.cli.image import ensure_with_progress
from agent_tools.conformance.findings import CATEGORIES, VERDICTS, counts
from agent_tools.conformance.survey import Survey, survey_container, survey_sandbox
from agent_tools.engines import context
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.volumes import read_volumes
from agent_tools.sandbox.options import Options

_STYLES = {"held": "green", "open": "bold red", "unknown": "yellow", "info": "cyan"}


def probe(container: str | None, as_json: bool, runtime: str | None = None, volumes: str = "") -> bool:
    """Probe a fresh sandbox, or a running container, and print the findings. Return True if all promises held."""
    engine = DockerEngine()
    if container is None:
        ensure_with_progress(Options.read({}))
        survey = survey_sandbox(engine, context.tag_for(), runtime, read_volumes(volumes))
    else:
        survey = survey_container(engine, container)
    if as_json:
        click.echo(json.dumps(_values(survey), indent=2))
    else:
        _show(survey)
    return not survey.is_open


def _values(survey: Survey) -> dict[str, object]:
    numbers: dict[str, object] = dict(counts(survey.findings).items())
    return {
        "target": survey.target,
        "note": survey.note,
        "summary": {**numbers, "is_open": survey.is_open},
        "findings": [asdict(finding) for finding in survey.findings],
    }


def _show(survey: Survey) -> None:
    console = Console(highlight=False)
    table = Table("check", "", "found", "seen by", title=Text(f"Probe of {survey.target}"), title_justify="left")
    for category in CATEGORIES:
        table.add_section()
        table.add_row(Text(category.upper(), style="bold"))
        for finding in survey.findings:
            if finding.category == category:
                verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
                table.add_row(Text(finding.name), verdict, Text(finding.found), finding.seen_by)
    console.print(table)
    console.print(
        "Seen by the code in the container: only its failures are trusted.",
        style="dim",
        soft_wrap=True,
    )
    if survey.note:
        console.print(Text(f"The code's side is unknown: {survey.note}.", style="yellow"), soft_wrap=True)
    for finding in survey.findings:
        if finding.advice:
            words = f"{finding.name}: {finding.found}. Not promised here: {finding.advice}"
            console.print(Text(words, style="yellow"), soft_wrap=True)
    console.print(Text(summary(survey)), soft_wrap=True)


def summary(survey: Survey) -> str:
    """Return one line: the count of each verdict, and whether the promises hold."""
    found = counts(survey.findings)
    total = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)
    ending = "some promises of the default sandbox are broken" if survey.is_open else "nothing promised is open"
    return f"{len(survey.findings)} checks: {total}; {ending}."
