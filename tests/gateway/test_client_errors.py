"""The errors that clients get for failures."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from agent_tools.containers.failures import (
    ContainerExists,
    ContainerExpired,
    ContainersError,
    KeyRevoked,
    NoSandbox,
    RowsAway,
    TooManyContainers,
)
from agent_tools.errors import EngineUnavailable, KernelDied, ModelError, ToolServiceError
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.requests.api_errors import ApiError


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (ApiError(418, "As it is.", code="teapot"), 418, "teapot"),
        (ModelError("no", status=429, code="slow_down"), 429, "slow_down"),
        (ModelError("no"), 502, "upstream_error"),
        (ModelError("no", status=401), 502, "upstream_unauthorized"),
        (EngineUnavailable("secret"), 503, "code_interpreter_unavailable"),
        (ToolServiceError(EngineUnavailable("secret")), 503, "code_interpreter_unavailable"),
        (ToolServiceError(code="Other", message="secret"), 500, "code_interpreter_error"),
        (KernelDied("secret"), 500, "code_interpreter_error"),
        (ValueError("secret"), 500, "internal_error"),
        (OSError(errno.EIO, "secret"), 500, "internal_error"),
        (OSError(errno.ENOSPC, "secret"), 507, "insufficient_storage"),
        (OSError(errno.EDQUOT, "secret"), 507, "insufficient_storage"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_failure_has_its_error(exc: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture) -> None:
    error = client_error(exc)
    assert (error.status, error.code) == (status, code)
    assert "secret" not in error.message + caplog.text


def test_the_upstreams_refusal_of_a_clients_own_key_is_the_clients() -> None:
    assert client_error(ModelError("no", status=401), is_clients_key=True).status == 401


def failures_of_containers(kind: type[ContainersError] = ContainersError) -> Iterator[type[ContainersError]]:
    for child in kind.__subclasses__():
        yield from failures_of_containers(child) if child.__subclasses__() else (child,)


@pytest.mark.parametrize("kind", [*failures_of_containers()], ids=lambda kind: kind.__name__)
def test_every_failure_of_containers_has_its_error(kind: type[ContainersError]) -> None:
    has_own_words = kind in (ContainerExists, ContainerExpired, KeyRevoked, RowsAway)
    failure = kind() if has_own_words else kind("some words")
    error = client_error(failure)
    assert 400 <= error.status < 600
    assert error.message == failure.message
    assert has_own_words or "some words" in error.message
    assert ("Retry-After" in error.headers) == (kind in (TooManyContainers, NoSandbox))
