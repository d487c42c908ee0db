"""The published image of a fingerprint is pulled by its digest; everything else is a reason to build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.engines.docker.published_image import RELEASED, Source, pull, pulled, source_of
from agent_tools.errors import EngineError, EngineUnavailable

TAG = "agent-tools:0123456789abcdef"
PINNED = "ghcr.example/a/agent-tools@sha256:1d"


class Engine:
    """An engine whose registry has `references`."""

    def __init__(self, *references: str) -> None:
        self.references = references
        self.tagged: list[tuple[str, str]] = []

    def pull(self, tag: str) -> Iterator[str]:
        yield "layer: Downloading"
        if tag not in self.references:
            raise EngineError(f"{tag} could not be pulled: not found")

    def tag_image(self, reference: str, tag: str) -> None:
        self.tagged.append((reference, tag))


@pytest.fixture
def released(tmp_path: Path) -> Path:
    path = tmp_path / "published.json"
    record = {
        "repository": "ghcr.example/a/agent-tools",
        "signer": "^https://a/",
        "digests": {"0123456789abcdef": "sha256:1d"},
    }
    path.write_text(json.dumps(record))
    return path


def test_a_release_names_its_image_by_the_digest(released: Path) -> None:
    assert source_of(TAG, released) == Source(PINNED, "^https://a/")
    assert source_of("agent-tools:fedcba9876543210", released) is None


def test_a_repository_of_the_operators_is_asked_for_the_fingerprint(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", "registry.corp:5000/tools")
    assert source_of(TAG, released) == Source("registry.corp:5000/tools:0123456789abcdef")


def test_pulling_can_be_turned_off(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", "none")
    assert source_of(TAG, released) is None


def test_before_a_release_nothing_is_pulled() -> None:
    engine = Engine()
    said: list[str] = []
    assert not pulled(engine, TAG, said.append)  # type: ignore[arg-type]
    assert said == []


def test_the_record_that_is_shipped_has_what_is_read() -> None:
    record = json.loads(RELEASED.read_text())
    assert set(record) == {"repository", "signer", "digests"}
    assert bool(record["repository"]) == bool(record["digests"])


def test_a_pulled_image_has_its_local_name_and_its_source_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", "r.corp/tools")
    reference = "r.corp/tools:0123456789abcdef"
    engine, said = Engine(reference), list[str]()
    assert pulled(engine, TAG, said.append)  # type: ignore[arg-type]
    assert engine.tagged == [(reference, TAG)]
    assert said == [f"Pulling {reference}", "layer: Downloading", f"Pulled {TAG} from {reference}"]


def test_an_image_that_is_not_there_is_said_and_left_to_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", "r.corp/tools")
    engine, said = Engine(), list[str]()
    assert not pulled(engine, TAG, said.append)  # type: ignore[arg-type]
    assert said[-1].endswith("could not be pulled: not found. Building it instead")


def test_an_engine_that_does_not_answer_is_no_reason_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", "r.corp/tools")

    class Gone(Engine):
        def pull(self, tag: str) -> Iterator[str]:
            raise EngineUnavailable("no engine")

    with pytest.raises(EngineUnavailable):
        pulled(Gone(), TAG, lambda line: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_signature_is_checked_where_cosign_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int
) -> None:
    program = tmp_path / "cosign"
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/asked\necho 'no signature' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = Engine(PINNED)
    if exit_code:
        with pytest.raises(EngineError, match=r"does not verify .*: no signature"):
            pull(engine, Source(PINNED, "^https://a/"), TAG, lambda line: None)  # type: ignore[arg-type]
    else:
        pull(engine, Source(PINNED, "^https://a/"), TAG, lambda line: None)  # type: ignore[arg-type]
    assert bool(engine.tagged) == (exit_code == 0)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[0] == "verify"
    assert asked[-3:] == ["--certificate-identity-regexp", "^https://a/", PINNED]
