"""Files in a request's input: put where code finds them, or passed on to the model."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.test_responses import INCLUDE, code, outputs, post

DATA = "data:text/csv;base64," + base64.b64encode(b"a,b\n1,2\n").decode()
READ = code("print(open('in.csv').read())")


def asking(**file: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Sum?"}, {"type": "input_file", **file}]}]


def told(gateway: Gateway) -> Any:
    return gateway.upstream.requests[0]["messages"][0]["content"]


def upload(gateway: Gateway) -> str:
    return gateway.client().files.create(file=("in.csv", b"a,b\n1,2\n"), purpose="user_data").id


@pytest.mark.parametrize("how", ["data URL", "base64", "uploaded"])
def test_code_finds_the_file_and_the_model_knows_where(new_gateway: NewGateway, how: str) -> None:
    gateway = new_gateway({"m": [READ, "3."]})
    data = {"filename": "in.csv", "file_data": DATA if how == "data URL" else DATA.rpartition(",")[2]}
    file = {"file_id": upload(gateway)} if how == "uploaded" else data
    (call,) = outputs(post(gateway, input=asking(**file), include=INCLUDE).json())
    assert call["outputs"] == [{"type": "logs", "logs": "a,b\n1,2\n\n"}]
    assert told(gateway) == "Sum?[The file is at /mnt/data/in.csv]"


def test_without_code_the_model_gets_the_file(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["3."]})
    post(gateway, input=asking(filename="in.csv", file_data=DATA), tools=[])
    assert told(gateway)[1] == {"type": "file", "file": {"filename": "in.csv", "file_data": DATA}}


def test_without_code_an_upstream_that_speaks_responses_gets_the_file(new_gateway: NewGateway) -> None:
    inner = new_gateway({"m": ["3."]})
    folder = inner.services.config.data_dir / "outer"
    outer = new_gateway({}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=folder)
    answer = post(outer, input=asking(filename="in.csv", file_data=DATA), tools=[])
    assert answer.json()["output"][0]["content"][0]["text"] == "3."
    assert told(inner)[1]["file"] == {"filename": "in.csv", "file_data": DATA}


@pytest.mark.parametrize(
    ("file", "param"),
    [
        ({"file_data": "data:text/csv;base64,%%%"}, "input[0].content[1].file_data"),
        ({"file_url": "https://example.com/in.csv"}, "input[0].content[1].type"),
        ({"file_id": "file_none"}, None),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(new_gateway: NewGateway, file: Any, param: str | None) -> None:
    answer = post(new_gateway({}), input=asking(**file))
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_an_uploaded_file_needs_code_to_be_read(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    answer = post(gateway, input=asking(file_id=upload(gateway)), tools=[])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
