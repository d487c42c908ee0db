"""Trying other people's clients: the gateway that they are given, what is judged of their answers, and the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import openai
import pytest

from supply import clients
from supply.other_clients import CLIENTS, ITS_OWN, KEPT, PASSED_ON

TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
SCRIPT = "import json; print(json.dumps({'answers': ANSWERS}))"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of the gateway that a client is given which needs no setting."""
    with clients.gateway(()) as url:
        yield url


@pytest.fixture
def no_other_gateway(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client is given the one that runs."""

    def running(settings: Sequence[str]) -> nullcontext[str]:
        assert settings == ()
        return nullcontext(url)

    monkeypatch.setattr(clients, "gateway", running)


def test_the_gateway_tells_a_client_that_keeps_its_container_from_one_that_does_not(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        first = client.responses.create(model="m", input="Go.", tools=[TOOL])
        kept = client.responses.create(model="m", input="And again?", tools=[TOOL], previous_response_id=first.id)
        lost = client.responses.create(model="m", input="And again?", tools=[TOOL])
        plain = client.responses.create(model="m", input="Go.")
    assert (first.output_text, kept.output_text) == KEPT
    assert lost.output_text == "The end: NameError"
    assert plain.output_text == PASSED_ON[0]


@pytest.mark.parametrize(
    ("answers", "says", "verdict"),
    [
        (KEPT, KEPT, "works, state kept"),
        (PASSED_ON, PASSED_ON, "works"),
        ((KEPT[0], "The end: NameError"), KEPT, "does not work"),
        (PASSED_ON, ITS_OWN, "does not work"),
    ],
)
def test_a_client_is_judged_by_its_answers(
    no_other_gateway: None, answers: tuple[str, ...], says: tuple[str, ...], verdict: str, tmp_path: Path
) -> None:
    outcome = tried(SCRIPT.replace("ANSWERS", repr(answers)), says, tmp_path)
    assert (outcome.verdict, outcome.is_good) == (verdict, verdict != "does not work")


def test_one_that_ends_badly_does_not_work_and_says_why(tmp_path: Path) -> None:
    outcome = tried("raise SystemExit('no such option')", KEPT, tmp_path)
    assert (outcome.verdict, outcome.note) == ("does not work", "exit code 1: no such option")


def tried(script: str, says: tuple[str, ...], folder: Path) -> clients.Outcome:
    """Try a script as a client without packages."""
    path = folder / "mine.py"
    path.write_text(script)
    return clients.tried(str(folder / "venv"), clients.Client("Mine", (), str(path), says))


def test_whoever_keeps_no_state_says_why() -> None:
    assert [name for name, client in CLIENTS.items() if (client.says == KEPT) == bool(client.reason)] == []


def test_without_names_they_are_listed_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert clients.main([]) == 0
    assert CLIENTS["haystack"].packages[0] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        clients.main(["nobody"])
    assert "no client 'nobody'" in capsys.readouterr().err
