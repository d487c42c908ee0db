"""Files in the input of a response."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import pytest

from agent_tools.containers.records import Upload
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, INCLUDE, code, outputs, post
from tests.gateway.conftest import Gateway, NewGateway

TABLE = base64.b64encode(b"a,b\n1,2\n").decode()
URL = f"data:text/csv;base64,{TABLE}"


def saying(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, *parts]}]


def file(data: str = URL, **more: Any) -> dict[str, Any]:
    return {"type": "input_file", "filename": "table.csv", "file_data": data, **more}


def obey(request: dict[str, Any]) -> ScriptedReply:
    """Run what the last message's first line says."""
    last = request["messages"][-1]
    return ScriptedReply(text="Ok.") if last["role"] == "tool" else code("print(open('table.csv').read())")


def read(gateway: Gateway, **body: Any) -> str:
    """Return what the code found in the file."""
    (call,) = outputs(post(gateway, include=INCLUDE, **body).json())
    return str(call["outputs"][0]["logs"])


@pytest.mark.parametrize("data", [URL, TABLE, f"data:;base64,{TABLE[:4]}\n{TABLE[4:]}"])
def test_an_inline_file_is_where_the_code_finds_it(new_gateway: NewGateway, data: str) -> None:
    gateway = new_gateway({"m": obey})
    assert read(gateway, input=saying(file(data))) == "a,b\n1,2\n\n"
    (message,) = gateway.upstream.requests[0]["messages"]
    assert message["content"] == "Look.[The file is at /mnt/data/table.csv]"


def test_an_uploaded_file_is_copied_in(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": obey})
    upload = gateway.client().files.create(file=("table.csv", b"up"), purpose="user_data")
    assert read(gateway, input=saying({"type": "input_file", "file_id": upload.id})) == "up\n"


def list_files(request: dict[str, Any]) -> ScriptedReply:
    """Print every file's content."""
    last = request["messages"][-1]
    listing = "import os\nfor name in sorted(os.listdir('.')): print(name, open(name).read())"
    return ScriptedReply(text="Ok.") if last["role"] == "tool" else code(listing)


def uploads(gateway: Gateway, *contents: bytes) -> list[str]:
    files = gateway.client().files
    return [files.create(file=("x.csv", content), purpose="user_data").id for content in contents]


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_files_of_one_name_are_all_there(new_gateway: NewGateway, is_uploaded: bool) -> None:
    gateway = new_gateway({"m": list_files})
    if is_uploaded:
        a, b = uploads(gateway, b"a", b"b")
        parts = [{"type": "input_file", "file_id": id_} for id_ in (a, b, a)]
    else:
        data = [f"data:;base64,{base64.b64encode(text).decode()}" for text in (b"a", b"b", b"a")]
        parts = [{"type": "input_file", "filename": "x.csv", "file_data": each} for each in data]
    assert read(gateway, input=saying(*parts)) == "x-1.csv b\nx.csv a\n"
    told = gateway.upstream.requests[0]["messages"][-1]["content"]
    assert [name.rstrip("]") for name in told.split("/mnt/data/")[1:]] == ["x.csv][The file is at ", *TWO]


TWO = ["x-1.csv][The file is at ", "x.csv"]


def test_a_new_upload_takes_the_place_of_an_earlier_one_and_a_known_one_stays_as_code_left_it(
    new_gateway: NewGateway,
) -> None:
    gateway = new_gateway({"m": list_files})
    january, february = uploads(gateway, b"January", b"February")

    def said(*ids: str, **more: Any) -> tuple[str, str]:
        tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ids}}
        body = post(gateway, include=INCLUDE, input="Look.", tools=[tool], **more).json()
        return body["id"], str(outputs(body)[0]["outputs"][0]["logs"]).strip()

    first, printed = said(january)
    assert printed == "x.csv January"
    container = gateway.client().containers.list().data[0].id
    gateway.services.files._contents.put(container, "x.csv", io.BytesIO(b"changed"))  # as code may
    second, printed = said(january, previous_response_id=first)
    assert printed == "x.csv changed"
    third, printed = said(february, previous_response_id=second)
    assert printed == "x.csv February"
    _, printed = said(february, january, previous_response_id=third)
    assert printed == "x-1.csv January\nx.csv February"
    told = gateway.upstream.requests[-1]["messages"][0]["content"]
    assert told == f"The file x.csv ({january}) is at /mnt/data/x-1.csv."


def test_a_container_named_by_its_id_gets_the_file_too(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": obey})
    id_ = gateway.client().containers.create(name="mine").id
    read(gateway, input=saying(file()), tools=[{"type": "code_interpreter", "container": id_}])
    (found,) = gateway.client().containers.files.list(id_)
    assert (found.path, found.source) == ("/mnt/data/table.csv", "user")


def test_a_file_of_an_answer_without_code_is_there_in_the_next_turn(new_gateway: NewGateway) -> None:
    look = code("print(open('table.csv').read())")
    gateway = new_gateway({"m": ["I see.", look, "Ok."]})
    first = post(gateway, input=saying(file())).json()
    assert read(gateway, input="And now?", previous_response_id=first["id"]) == "a,b\n1,2\n\n"


def test_a_file_that_is_sent_again_with_the_past_stays_as_code_has_left_it(new_gateway: NewGateway) -> None:
    change = code("open('table.csv', 'w').write('changed')")
    gateway = new_gateway({"m": [change, "Done.", *[code("print(open('table.csv').read())"), "Ok."] * 2]})
    said = saying(file())
    past = [*said, *post(gateway, input=said).json()["output"]]
    assert read(gateway, input=[*past, {"role": "user", "content": "And now?"}]) == "changed\n"
    assert read(gateway, input=[*past, *saying(file(base64.b64encode(b"new").decode()))]) == "new\n"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/mnt/data/x", "a\r\nb: c", "..", "\0", "x" * 999, "sub\\dir\\x"])
def test_a_files_name_leads_nowhere_else(new_gateway: NewGateway, name: str) -> None:
    gateway = new_gateway({"m": ["Ok.", "Ok."]})
    id_ = gateway.client().containers.create(name="mine").id
    tools = [{"type": "code_interpreter", "container": id_}]
    assert post(gateway, input=saying(file(filename=name)), tools=tools).status_code == 200
    (found,) = gateway.client().containers.files.list(id_)
    assert "/" not in found.path.removeprefix("/mnt/data/")
    content = httpx.get(f"{gateway.url}/v1/containers/{id_}/files/{found.id}/content")
    assert content.content == b"a,b\n1,2\n"
    assert not {"b", "set-cookie"} & set(content.headers)
    folder = gateway.services.config.data_dir / "containers"
    assert [path.parent.parent for path in folder.rglob("*") if path.is_file()] == [folder]


@pytest.mark.parametrize(
    ("part", "status", "param"),
    [
        (file("data:text/csv,a%2Cb"), 400, "input[0].content[1].file_data"),
        (file("%%%"), 400, "input[0].content[1].file_data"),
        ({"type": "input_file", "file_url": "http://169.254.169.254/"}, 400, "input[0].content[1].file_url"),
        ({"type": "input_file"}, 400, "input[0].content[1]"),
        ({"type": "input_file", "file_id": "file_none"}, 404, None),
    ],
)
@pytest.mark.parametrize("tools", [[CODE_TOOL], []])
def test_a_file_that_cannot_be_had_is_refused(
    new_gateway: NewGateway, part: dict[str, Any], status: int, param: str | None, tools: Any
) -> None:
    answer = post(new_gateway({}), input=saying(part), tools=tools)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_a_file_that_is_too_large_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_upload_bytes=1000, max_body_bytes=1000)
    answer = post(gateway, input=saying(file(base64.b64encode(bytes(100)).decode() * 10)))
    assert answer.status_code == 413
    upload = gateway.client().files.create(file=("a", bytes(1000)), purpose="user_data")
    gateway.services.store.change(Upload, upload.id, bytes=1001)
    assert post(gateway, input=saying({"type": "input_file", "file_id": upload.id}), tools=[]).status_code == 413


def test_there_are_only_so_many_files(new_gateway: NewGateway) -> None:
    answer = post(new_gateway({}), input=saying(*[file()] * 101), tools=[])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].content[101]")


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_without_code_the_model_gets_the_file(new_gateway: NewGateway, kind: str) -> None:
    inner = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    nested = {"upstream": f"{inner.url}/v1", "data_dir": inner.services.config.data_dir / "outer"}
    gateway = new_gateway({}, upstream_api="responses", **nested) if kind == "responses" else inner
    upload = gateway.client().files.create(file=("up.bin", b"up"), purpose="user_data")
    said = saying(file(TABLE), {"type": "input_file", "file_id": upload.id})
    first = post(gateway, input=said, tools=[]).json()
    assert post(gateway, input="More.", tools=[], previous_response_id=first["id"]).json()["status"] == "completed"
    for request in inner.upstream.requests:
        parts = request["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["text", "file", "file"]
        assert parts[1]["file"] == {"filename": "table.csv", "file_data": URL}
        assert parts[2]["file"]["file_data"] == "data:application/octet-stream;base64,dXA="


def test_files_of_earlier_turns_are_there_again_where_their_container_is_lost(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": list_files})
    (upload,) = uploads(gateway, b"up")
    given = [saying(file(), {"type": "input_file", "file_id": upload}), saying(file("data:;base64,bmV3")), saying()]
    earlier: dict[str, Any] = {}
    for each in given:
        answer = post(gateway, input=each, include=INCLUDE, **earlier).json()
        earlier = {"previous_response_id": answer["id"]}
    (call,) = outputs(answer)
    (before,) = (each["logs"] for each in call["outputs"])
    assert before == "table.csv new\nx.csv up\n"
    gateway.client().containers.delete(call["container_id"])
    assert read(gateway, input=saying(), **earlier) == before
    told = gateway.upstream.requests[-1]["messages"][0]["content"]
    assert told.startswith("The container that earlier calls ran in is gone")
    assert told.endswith("The user's files were copied into it again, in their original state.")


def test_an_answer_without_code_brings_no_files_back(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": list_files, "silent": "Ok."})
    answer = post(gateway, input=saying(file()), include=INCLUDE).json()
    (call,) = outputs(answer)
    client = gateway.client()
    client.containers.delete(call["container_id"])
    post(gateway, model="silent", input=saying(), previous_response_id=answer["id"])
    assert not [each for each in client.containers.list() if each.status != "expired"]
