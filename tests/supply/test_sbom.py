"""Bills of materials fit CycloneDX's own schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tools.engines.docker.image_origin import Origin
from supply.audit import pinned
from supply.sbom import ImageContents, bill_of
from tests.bills import fits_schema

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = ImageContents(
    python=(("Pillow", "13.0.0", "MIT-CMU"), ("odd", "1.0", "not an SPDX name")),
    debian=(("libc6", "2.41-12+deb13u1", "amd64"),),
    release="13",
    interpreter="3.13.5",
)


def test_the_bill_of_an_image_is_valid_and_names_packages_as_scanners_do() -> None:
    bill = bill_of("agent-tools:0123", Origin("python:3.13", "sha256:ab", "1.0"), CONTENTS)
    assert fits_schema(bill)
    said = json.loads(bill)
    assert {each["purl"] for each in said["components"]} == {
        "pkg:pypi/pillow@13.0.0",
        "pkg:pypi/odd@1.0",
        "pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64&distro=debian-13",
        "pkg:generic/python@3.13.5",
    }
    told = {each["name"]: each["value"] for each in said["metadata"]["component"]["properties"]}
    assert told["agent_tools:base.digest"] == "sha256:ab"


def test_the_bill_of_the_host_is_valid_and_complete(tmp_path: Path) -> None:
    lock, bill = ROOT / "host.lock", tmp_path / "host.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(lock), "--spec-version", "1.6"]
    subprocess.run([*command, "--no-validate", "--output-file", str(bill)], check=True, capture_output=True)
    assert fits_schema(bill.read_text())
    assert {each["name"] for each in json.loads(bill.read_text())["components"]} == pinned(lock)


def test_what_breaks_the_schema_is_seen() -> None:
    assert not fits_schema('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"type": "nonsense"}]}')


@pytest.mark.docker
def test_the_bill_of_the_image_names_all_that_is_pinned_and_the_packages_of_its_base() -> None:
    done = subprocess.run([sys.executable, "-m", "supply.sbom"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert fits_schema(done.stdout), done.stderr
    found = {each["purl"].partition("@")[0] for each in json.loads(done.stdout)["components"]}
    assert {f"pkg:pypi/{name}" for name in pinned(ROOT / "docker" / "requirements.lock")} <= found
    assert {"pkg:deb/debian/libc6", "pkg:generic/python"} <= found
