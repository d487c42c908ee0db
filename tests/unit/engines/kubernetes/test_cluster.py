"""The cluster that a kubeconfig names, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import certifi
import httpx2
import pytest

from agent_tools.engines.kubernetes import cluster as module
from agent_tools.engines.kubernetes.api import Api
from agent_tools.engines.kubernetes.cluster import Cluster, load_cluster
from agent_tools.errors import EngineUnavailable


def authorization(cluster: Cluster) -> str:
    with cluster.client() as client:
        assert client.auth
        return next(client.auth.sync_auth_flow(client.build_request("GET", "/"))).headers["Authorization"]


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
    assert (cluster.config.cluster.server, cluster.config.namespace) == ("https://blue.example.com:6443/", "default")
    assert cluster.server_name == "kubernetes"
    assert authorization(cluster) == "Bearer t0ken"


def test_another_may_be_named(file: Path) -> None:
    assert load_cluster("arn:aws:eks:eu:1:cluster/blue", str(file)).config.namespace == "boxes"


def test_a_token_of_a_program_is_asked_for(file: Path) -> None:
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "fresh"}}
    plugin = {
        "apiVersion": said["apiVersion"],
        "command": "echo",
        "args": [json.dumps(said)],
        "interactiveMode": "Never",
    }
    file.write_text(json.dumps(kubeconfig(exec=plugin)))
    assert authorization(load_cluster("", str(file))) == "Bearer fresh"


def test_a_context_may_be_in_another_file(file: Path) -> None:
    other = file.with_name("other")
    content = {"contexts": [], "clusters": [], "current-context": "arn:aws:eks:eu:1:cluster/blue"}
    other.write_text(json.dumps(content))
    assert load_cluster("", f"{other}:{file}").config.namespace == "boxes"


def test_missing_files_of_a_list_are_ignored(file: Path) -> None:
    assert load_cluster("", f":{file.with_name('missing')}:{file}").server_name == "kubernetes"


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


def test_a_pod_knows_its_cluster_and_renews_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("token", "inside"), ("ca.crt", certifi.contents()), ("namespace", "boxes")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(module, "OWN_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    cluster = load_cluster("")
    assert (cluster.config.cluster.server, cluster.config.namespace) == ("https://10.0.0.1:443", "boxes")
    with cluster.client() as client:
        flow = client.auth.sync_auth_flow(client.build_request("GET", "/"))
        assert next(flow).headers["Authorization"] == "Bearer inside"
        (tmp_path / "token").write_text("renewed")
        assert flow.send(httpx2.Response(401)).headers["Authorization"] == "Bearer renewed"


def test_a_plug_in_that_fails_is_told(file: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}
    file.write_text(json.dumps(kubeconfig(exec=plugin)))
    with pytest.raises(EngineUnavailable, match="Exec false returned 1"):
        Api(load_cluster("", str(file)), 1).ask("GET", "/version")
