"""The sentence beside an error of code that sought the network: which errors have it, and which sentence it is."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from agent_tools.guest.kernel import next_steps
from agent_tools.guest.kernel.next_steps import LISTED_ONLY, MAX_LINKS, NO_NETWORK, advice

UNKNOWN = NO_NETWORK.format("HOST")
NAME = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
ROUTE = OSError(errno.ENETUNREACH, "Network is unreachable")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])
    monkeypatch.setattr(next_steps, "PLACE", str(tmp_path / "none"))


def chained(cause: BaseException, links: int, *, is_said: bool) -> BaseException:
    for number in range(links):
        link = ValueError(number)
        if is_said:
            link.__cause__ = cause
        else:
            link.__context__ = cause
        cause = link
    return cause


@pytest.mark.parametrize("cause", [NAME, ROUTE])
@pytest.mark.parametrize("is_said", [True, False])
def test_an_error_of_the_network_is_found_behind_others(cause: BaseException, is_said: bool) -> None:
    assert advice(cause) == advice(chained(cause, 5, is_said=is_said)) == UNKNOWN
    assert advice(chained(cause, MAX_LINKS, is_said=is_said)) == ""
    assert advice(RuntimeError("a group's text", cause)) == ""


def test_an_error_of_the_network_is_found_in_a_group() -> None:
    group = ExceptionGroup("", [ValueError(), ExceptionGroup("", [chained(NAME, 3, is_said=True)])])
    assert advice(group) == UNKNOWN


@pytest.mark.parametrize(
    ("host", "port", "entry"),
    [
        ("api.example.org", 443, "api.example.org"),
        ("example.org", "https", "example.org"),
        ("example.org", 80, "example.org:80"),
        ("192.0.2.1", 5432, "192.0.2.1:5432"),
        ("2001:db8::1", 8080, "[2001:db8::1]:8080"),
        *(("a'] and more", 443, "HOST"), ("a\nb", 443, "HOST"), (b"a.org", 443, "HOST"), ("a" * 300, 443, "HOST")),
    ],
)
def test_the_advice_names_the_host_that_was_sought(host: object, port: object, entry: str) -> None:
    def getaddrinfo(host: object, port: object) -> None:
        raise NAME.with_traceback(None)

    def connect() -> None:
        try:
            getaddrinfo(host, port)
        except OSError as exc:
            raise RuntimeError("broken") from exc

    with pytest.raises(RuntimeError) as caught:
        connect()
    assert advice(caught.value) == NO_NETWORK.format(entry)


def test_other_errors_have_no_advice() -> None:
    circle = ValueError()
    circle.__context__ = KeyError()
    circle.__context__.__context__ = circle
    others = (
        circle,
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        OSError("no number"),
        FileNotFoundError(2, ""),
    )
    assert [advice(each) for each in others] == [""] * 4


def test_a_class_of_the_codes_own_may_raise() -> None:
    class Hostile(OSError):
        @property
        def errno(self) -> int:  # type: ignore[override]
            raise RuntimeError

    assert advice(Hostile()) == ""


def test_a_sandbox_with_a_network_has_other_advice_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(next_steps, "PLACE", str(tmp_path))
    assert advice(NAME) == LISTED_ONLY
    monkeypatch.setattr(next_steps, "PLACE", str(tmp_path / "none"))
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert advice(NAME) == ""
