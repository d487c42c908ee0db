"""The operator's options: what they are without a word, how they are written, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from agent_tools import settings
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB

DEFAULTS = {
    "kubeconfig": "",
    "context": "",
    "namespace": "",
    "image": "agent-tools",
    "pull_secret": "",
    "runtime_class": "",
    "seccomp": "localhost",
    "network_policy": "unknown",
    "user_namespaces": False,
    "node_selector": {},
    "memory_request": 80 * MIB,
    "cpu_request": 0.02,
    "deadline": 86_400.0,
    "start_timeout": 60.0,
    "timeout": 60.0,
    "warm_pool": False,
}


def read(word: str = "kubernetes", **given: str) -> KubernetesOptions:
    return KubernetesOptions.read(word, given)


def test_without_a_word_everything_has_its_default() -> None:
    assert {each.name: getattr(read(), each.name) for each in fields(KubernetesOptions)} == DEFAULTS


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("namespace", "sandboxes", "sandboxes"),
        ("image", "registry.example.com:5000/team/agent-tools", "registry.example.com:5000/team/agent-tools"),
        ("pull_secret", "registry", "registry"),
        ("runtime_class", "gvisor", "gvisor"),
        ("network_policy", "enforced", "enforced"),
        ("user_namespaces", "yes", True),
        ("user_namespaces", "0", False),
        ("node_selector", "pool=sandboxes, example.com/disk=ssd", {"pool": "sandboxes", "example.com/disk": "ssd"}),
        ("memory_request", "1048576", MIB),
        ("cpu_request", "0.5", 0.5),
        ("deadline", "3600", 3600.0),
        ("start_timeout", "5", 5.0),
        ("timeout", "2.5", 2.5),
        ("warm_pool", "1", True),
    ],
)
def test_a_variable_sets_it(name: str, written: str, value: object) -> None:
    given = settings.kubernetes_options({f"AGENT_TOOLS_KUBERNETES_{name.upper()}": written, "HOME": "/"})
    assert getattr(KubernetesOptions.read("kubernetes", given), name) == value


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("namespace", "Sandboxes"),
        ("namespace", "../secrets"),
        ("image", "agent-tools:latest"),
        ("image", "agent-tools@sha256:00"),
        ("image", "https://registry.example.com/a"),
        ("pull_secret", "a/b"),
        ("seccomp", "unconfined"),
        ("seccomp", "runtime-default"),  # which nobody has said is sealed
        ("network_policy", "yes"),
        ("user_namespaces", "perhaps"),
        ("node_selector", "pool"),
        ("memory_request", "80Mo"),
        ("cpu_request", "nan"),
        ("cpu_request", "0"),
        ("deadline", "10"),
        ("start_timeout", "-1"),
        ("timeout", "inf"),
        ("colour", "red"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, written: str) -> None:
    with pytest.raises(InvalidParams, match=name.upper() if written != "runtime-default" else "NETWORK_POLICY"):
        read(**{name: written})


@pytest.mark.parametrize(
    ("word", "context", "namespace"),
    [
        ("kubernetes", "", ""),
        ("kubernetes://staging", "staging", ""),
        ("kubernetes://staging/sandboxes", "staging", "sandboxes"),
        ("kubernetes://arn:aws:eks:eu-west-1:1:cluster/blue/", "arn:aws:eks:eu-west-1:1:cluster/blue", ""),
        ("kubernetes://arn:aws:eks:eu-west-1:1:cluster/blue/boxes", "arn:aws:eks:eu-west-1:1:cluster/blue", "boxes"),
        ("kubernetes:///sandboxes", "", "sandboxes"),
    ],
)
def test_the_address_is_a_context_and_a_namespace(word: str, context: str, namespace: str) -> None:
    options = read(word)
    assert (options.context, options.namespace) == (context, namespace)


def test_kubeconfig_is_the_usual_variable() -> None:
    given = settings.kubernetes_options({"KUBECONFIG": "/a:/b"})
    assert KubernetesOptions.read("kubernetes", given).kubeconfig == "/a:/b"


def test_the_address_goes_before_the_variable() -> None:
    assert read("kubernetes:///here", namespace="there").namespace == "here"
    assert read("kubernetes://staging", namespace="there").namespace == "there"
