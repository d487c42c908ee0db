"""The matrix of engines: what it finds, runs and leaves out, told by what engines say of themselves."""

from __future__ import annotations

import json
import subprocess

import pytest

from supply.matrix import KINDS, NOT_RUN, Row, hosts, judged, main, missing, places_of

DOCKER = {"ServerVersion": "28.0", "CgroupVersion": "2", "DefaultRuntime": "runc", "SecurityOptions": ["name=seccomp"]}
ROW = Row("here", ("runc",), "would run")


def kinds_of(info: dict[str, object] | str) -> list[tuple[str, set[str]]]:
    return [(place.runtime, set(place.kinds)) for place in places_of("unix:///s", info)]


def probed(is_open: bool) -> subprocess.CompletedProcess[str]:
    summary = {"held": 3, "open": int(is_open), "unknown": 0, "info": 1, "is_open": is_open}
    findings = [{"name": "ptrace", "verdict": "open" if is_open else "held"}]
    return subprocess.CompletedProcess([], int(is_open), json.dumps({"summary": summary, "findings": findings}), "")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (DOCKER, [("", {"cgroup v2", "runc"})]),
        ({**DOCKER, "SecurityOptions": ["name=rootless"]}, [("", {"cgroup v2", "runc", "rootless"})]),
        ({**DOCKER, "SecurityOptions": ["name=userns"]}, [("", {"cgroup v2", "runc", "userns-remap"})]),
        (
            {**DOCKER, "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}, "runsc": {}, "kata-qemu": {}}},
            [("", {"cgroup v2", "runc"}), ("kata-qemu", {"cgroup v2", "Kata"}), ("runsc", {"cgroup v2", "gVisor"})],
        ),
        ({**DOCKER, "DefaultRuntime": "runsc", "Runtimes": {"runsc": {}}}, [("", {"cgroup v2", "gVisor"})]),
        (
            {**DOCKER, "Components": [{"Name": "Podman Engine"}], "Runtimes": {"crun": {}, "kata": {}}},
            [("", {"cgroup v2", "runc", "Podman"})],  # it names all that it could use, not what is there
        ),
        ("no answer", [("", set())]),
    ],
)
def test_an_engine_says_what_it_is(info: dict[str, object] | str, expected: list[tuple[str, set[str]]]) -> None:
    assert kinds_of(info) == expected


def test_engines_are_asked_once_in_order() -> None:
    environ = {"DOCKER_HOST": "unix:///a", "DOCKER_HOSTS": "ssh://b unix:///a  tcp://c", "XDG_RUNTIME_DIR": "/nowhere"}
    assert hosts(environ)[:3] == ["unix:///a", "ssh://b", "tcp://c"]


def test_what_no_engine_offers_is_a_line_with_its_reason() -> None:
    rows = missing(places_of("unix:///s", DOCKER))
    assert {row.kinds[0] for row in rows} == set(KINDS) - {"cgroup v2", "runc"}
    assert all(row.probe.startswith(f"{NOT_RUN}: ") and not row.has_run for row in rows)


def test_an_open_promise_is_named_and_bad() -> None:
    row = judged(ROW, probed(is_open=True))
    assert (row.probe, row.has_run, row.is_bad) == ("3 held, 1 open, 0 unknown, 1 info; open: ptrace", True, True)
    assert not judged(ROW, probed(is_open=False)).is_bad


def test_what_a_kernel_of_its_own_answers_is_told_and_not_judged() -> None:
    row = judged(Row("here", ("gVisor",), "would run"), probed(is_open=True))
    assert row.has_run
    assert not row.is_bad
    assert "open: ptrace" in row.probe


def test_a_probe_that_could_not_run_says_why_and_has_not_run() -> None:
    row = judged(ROW, subprocess.CompletedProcess([], 3, "", "agent-tools: no such runtime\nmore"))
    assert (row.probe, row.has_run, row.is_bad) == (f"{NOT_RUN}: agent-tools: no such runtime", False, False)


def test_a_required_kind_that_did_not_run_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert main(["--list", "--require", "runc"]) == 3
    assert f"{NOT_RUN}: no answer" in capsys.readouterr().out
