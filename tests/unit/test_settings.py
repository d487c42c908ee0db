import ast
import dataclasses
import inspect
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_tools import settings
from agent_tools.limits import Limits

FIELDS = [field.name for field in dataclasses.fields(Limits)]


def documented_fields() -> dict[str, str]:
    """Field name -> the string that directly follows it in the source."""
    body = ast.parse(inspect.getsource(Limits)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: comment.value.value
        for field, comment in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(comment, ast.Expr)
    }


def test_every_limit_is_positive() -> None:
    assert [name for name in FIELDS if getattr(Limits(), name) <= 0] == []


def test_every_limit_says_what_it_bounds() -> None:
    documented = documented_fields()
    assert [name for name in FIELDS if not documented.get(name, "").strip().endswith(".")] == []


def test_limits_cannot_be_changed_after_the_fact() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().timeout = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        pytest.param({}, "workspace", id="default"),
        pytest.param({"DEFAULT_WORKSPACE": "/a"}, "/a", id="DEFAULT_WORKSPACE"),
        pytest.param({"QWEN_AGENT_DEFAULT_WORKSPACE": "/b"}, "/b", id="QWEN_AGENT_DEFAULT_WORKSPACE"),
        pytest.param({"DEFAULT_WORKSPACE": "/a", "QWEN_AGENT_DEFAULT_WORKSPACE": "/b"}, "/a", id="both"),
        pytest.param({"DEFAULT_WORKSPACE": "", "QWEN_AGENT_DEFAULT_WORKSPACE": "/b"}, "/b", id="empty is not set"),
    ],
)
def test_default_workspace(environ: dict[str, str], path: str) -> None:
    assert settings.default_workspace(environ) == Path(path)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        pytest.param({}, "workspace/tools/code_interpreter", id="default"),
        pytest.param({"DEFAULT_WORKSPACE": "/a"}, "/a/tools/code_interpreter", id="under the default workspace"),
        pytest.param({"M6_CODE_INTERPRETER_WORK_DIR": "/w", "DEFAULT_WORKSPACE": "/a"}, "/w", id="given"),
        pytest.param({"M6_CODE_INTERPRETER_WORK_DIR": ""}, "workspace/tools/code_interpreter", id="empty is not set"),
    ],
)
def test_code_interpreter_work_dir(environ: dict[str, str], path: str) -> None:
    assert settings.code_interpreter_work_dir(environ) == Path(path)


@pytest.mark.parametrize(
    ("function", "name"),
    [(settings.static_url, "M6_CODE_INTERPRETER_STATIC_URL"), (settings.base_image, "AGENT_TOOLS_BASE_IMAGE")],
    ids=["static_url", "base_image"],
)
def test_one_variable_that_may_be_unset(function: Callable[..., Any], name: str) -> None:
    assert function({}) is None
    assert function({name: ""}) is None
    assert function({name: "x"}) == "x"


def test_ca_bundle_is_the_first_that_names_a_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pem", tmp_path / "second.pem"
    first.touch()
    second.touch()
    assert settings.ca_bundle({"SSL_CERT_FILE": str(second), "PIP_CERT": str(first)}) == first
    assert settings.ca_bundle({"PIP_CERT": str(tmp_path / "none"), "REQUESTS_CA_BUNDLE": str(second)}) == second


def test_ca_bundle_is_none_when_no_variable_names_a_file(tmp_path: Path) -> None:
    assert settings.ca_bundle({}) is None
    assert settings.ca_bundle({"PIP_CERT": str(tmp_path), "SSL_CERT_FILE": ""}) is None


def test_a_build_is_told_only_what_is_set() -> None:
    environ = {"PIP_INDEX_URL": "https://i", "PIP_EXTRA_INDEX_URL": "", "PIP_CERT": "/c", "HOME": "/h"}
    environ |= {"https_proxy": "http://p:1", "NO_PROXY": "a", "DEBIAN_MIRROR": "http://m/debian"}
    told = {
        "PIP_INDEX_URL": "https://i",
        **dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://p:1"),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), "a"),
        "DEBIAN_MIRROR": "http://m/debian",
    }
    assert settings.build_arguments(environ) == told


@pytest.mark.parametrize(
    ("environ", "base"),
    [
        pytest.param({}, "/tmp", id="default"),
        pytest.param({"XDG_RUNTIME_DIR": "/nowhere"}, "/tmp", id="XDG_RUNTIME_DIR without a folder"),
        pytest.param({"AGENT_TOOLS_RUN_DIR": "/r", "XDG_RUNTIME_DIR": "/x"}, "/r", id="AGENT_TOOLS_RUN_DIR"),
    ],
)
def test_runtime_dir_is_one_folder_per_user(environ: dict[str, str], base: str) -> None:
    assert settings.runtime_dir(environ) == Path(base) / f"agent_tools-{os.getuid()}"


def test_the_runtime_folder_of_the_session_counts_if_it_belongs_to_this_user(tmp_path: Path) -> None:
    assert settings.runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)}).parent == tmp_path
    foreign = Path("/")
    if os.getuid() == 0:
        foreign = tmp_path
        os.chown(foreign, 54_321, -1)
    assert settings.runtime_dir({"XDG_RUNTIME_DIR": str(foreign)}).parent == Path("/tmp")


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_BASE_IMAGE", "python:3.12")
    assert settings.base_image() == "python:3.12"


def test_the_gateways_settings_and_whether_to_trace_come_from_the_environment() -> None:
    environ = {"AGENT_TOOLS_GATEWAY_UPSTREAM": "http://u/v1", "AGENT_TOOLS_GATEWAY_PORT": "", "OTHER": "x"}
    assert settings.gateway_options(environ) == {"upstream": "http://u/v1"}
    assert not settings.is_tracing_wanted(environ)
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert settings.is_tracing_wanted(traced)
    assert not settings.is_tracing_wanted({**traced, "OTEL_SDK_DISABLED": "true"})
