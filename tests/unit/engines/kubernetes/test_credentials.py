"""The cluster that a kubeconfig names, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.kubernetes import credentials
from agent_tools.engines.kubernetes.credentials import load_cluster
from agent_tools.errors import EngineUnavailable


def kubeconfig(**user: Any) -> dict[str, Any]:
    context = {"cluster": "blue", "user": "me"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "plain",
        "clusters": [
            {
                "name": "blue",
                "cluster": {"server": "https://blue.example.com:6443/", "tls-server-name": "kubernetes"},
            }
        ],
        "users": [{"name": "me", "user": user or {"token": "t0ken"}}],
        "contexts": [
            {"name": "plain", "context": context},
            {"name": "arn:aws:eks:eu:1:cluster/blue", "context": {**context, "namespace": "boxes"}},
        ],
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig()))
    return path


def test_the_current_context_is_the_one(file: Path) -> None:
    cluster = load_cluster("", str(file))
    assert (cluster.server, cluster.namespace) == ("https://blue.example.com:6443", "default")
    assert cluster.server_name == "kubernetes"
    assert cluster.is_verified
    assert cluster.authorization() == "Bearer t0ken"


def test_another_may_be_named(file: Path) -> None:
    assert load_cluster("arn:aws:eks:eu:1:cluster/blue", str(file)).namespace == "boxes"


def test_a_token_of_a_program_is_asked_for(file: Path) -> None:
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "fresh"}}
    plugin = {
        "apiVersion": said["apiVersion"],
        "command": "echo",
        "args": [json.dumps(said)],
        "interactiveMode": "Never",
    }
    file.write_text(json.dumps(kubeconfig(exec=plugin)))
    assert load_cluster("", str(file)).authorization() == "Bearer fresh"


@pytest.mark.parametrize("content", ["", "{", "[]", "a: b", json.dumps({"contexts": []})])
def test_a_file_that_is_none_is_told(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(EngineUnavailable, match="No Kubernetes cluster is known"):
        load_cluster("", str(file))


@pytest.mark.parametrize("content", ["token: [s3cret", '{"users": [{"name": "me", "user": {"tokn": "s3cret"}}]}'])
def test_no_secret_of_a_file_is_told(file: Path, content: str) -> None:
    given = {**kubeconfig(), "users": [{"name": "me", "usr": {"token": "s3cret"}}]}
    for text in (content, json.dumps(given)):
        file.write_text(text)
        with pytest.raises(EngineUnavailable) as failed:
            load_cluster("", str(file))
        assert "s3cret" not in str(failed.value)


def test_a_context_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(EngineUnavailable, match="No Kubernetes cluster is known"):
        load_cluster("green", str(file))


def test_no_cluster_at_all_is_told(tmp_path: Path) -> None:
    file = tmp_path / "missing"
    with pytest.raises(EngineUnavailable, match="Set KUBECONFIG"):
        load_cluster("", str(file))


def test_a_pod_knows_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config

    for name, content in (("token", "inside"), ("ca.crt", "certificate"), ("namespace", "boxes\n")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(credentials, "OWN_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    cluster = load_cluster("")
    assert (cluster.server, cluster.namespace) == ("https://10.0.0.1:443", "boxes")
    assert cluster.authorization() == "bearer inside"


def test_a_token_that_cannot_be_renewed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.client import Configuration

    def refuse(found: Configuration) -> None:
        raise FileNotFoundError(2, "No such file or directory", "token")

    found = Configuration(api_key={"BearerToken": "old"})
    found.refresh_api_key_hook = refuse
    with pytest.raises(EngineUnavailable, match="cannot be renewed: No such file or directory: token"):
        credentials._authorization(found)
