"""The engine's address, where the docker CLI finds it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from agent_tools.engines.docker.address import environment
from agent_tools.errors import EngineUnavailable

NAMES = ("DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the docker CLI's settings, with the context `far`, and nothing chosen."""
    for name in (*NAMES, "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    put_context(tmp_path, "far", {"docker": {"Host": "unix:///far.sock", "SkipTLSVerify": False}})
    return tmp_path


def put_context(folder: Path, name: str, endpoints: object) -> None:
    """Write a context as `docker context create` does."""
    path = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints}))


def told() -> list[str | None]:
    """What the SDK is told of the engine."""
    found = environment()
    return [found.get(name) for name in NAMES]


def test_without_a_context_the_environment_says_it_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told() == [None, None, None]
    monkeypatch.setenv("DOCKER_HOST", "tcp://b")
    assert told()[0] == "tcp://b"


def test_the_context_that_is_in_use_has_the_address(folder: Path) -> None:
    (folder / "config.json").write_text('{"currentContext": "far"}')
    assert told() == ["unix:///far.sock", "", ""]


def test_a_context_may_be_named_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    assert told()[0] == "unix:///far.sock"
    (folder / "config.json").write_text('{"currentContext": "near"}')
    assert told()[0] == "unix:///far.sock"


def test_an_address_of_the_environment_goes_before_any_context(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    monkeypatch.setenv("DOCKER_HOST", "tcp://b")
    assert told()[0] == "tcp://b"


@pytest.mark.parametrize(("skips", "verifies"), [(False, "1"), (True, "")])
def test_a_context_brings_its_certificates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, skips: bool, verifies: str
) -> None:
    put_context(folder, "safe", {"docker": {"Host": "tcp://c:2376", "SkipTLSVerify": skips}})
    certificates = folder / "contexts/tls" / hashlib.sha256(b"safe").hexdigest() / "docker"
    certificates.mkdir(parents=True)
    monkeypatch.setenv("DOCKER_CONTEXT", "safe")
    assert told() == ["tcp://c:2376", str(certificates), verifies]


def test_the_default_context_is_this_machine_s_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.json").write_text('{"currentContext": "far"}')
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert told() == [None, None, None]


@pytest.mark.parametrize("endpoints", [None, [], {}, {"docker": "x"}, {"docker": {}}, {"docker": {"Host": 3}}])
def test_a_context_without_an_address_is_an_error_that_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, endpoints: object
) -> None:
    put_context(folder, "odd", endpoints)
    monkeypatch.setenv("DOCKER_CONTEXT", "odd")
    with pytest.raises(EngineUnavailable, match=r"'odd' does not exist.*docker context ls"):
        environment()


@pytest.mark.parametrize("config", ["", "[]", "{", '{"currentContext": ""}', "[" * 10_000])
def test_settings_that_say_nothing_choose_nothing(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    assert told() == [None, None, None]


def test_a_context_that_was_removed_is_an_error(folder: Path) -> None:
    (folder / "config.json").write_text('{"currentContext": "gone"}')
    with pytest.raises(EngineUnavailable, match="'gone' does not exist"):
        environment()
