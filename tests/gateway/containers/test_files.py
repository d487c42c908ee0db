"""Files in containers: written by code, uploaded, cited, read."""

from __future__ import annotations

import errno
import io
import os
import tracemalloc
from unittest.mock import Mock

import httpx
import openai
import pytest
from openai.types import FileObject
from openai.types.containers import FileCreateResponse

from agent_tools.containers.records import ContainerFile, Upload
from agent_tools.limits import MIB
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import BOUNDARY, DRAW, HEAD, INCLUDE, code, in_container, outputs, post, stream
from tests.gateway.conftest import NewGateway
from tests.gateway.strict import check


def test_a_file_that_code_wrote_is_cited_and_can_be_had(new_gateway: NewGateway) -> None:
    link = (
        "Here: [data](sandbox:/mnt/data/data.csv), not [that](sandbox:/mnt/data/none.csv) nor sandbox:/mnt/data/../x."
    )
    gateway = new_gateway({"m": [code("open('data.csv', 'w').write('a,b')"), ScriptedReply(text=link, piece=9)]})
    events = stream(gateway)
    kinds = [event["type"] for event in events]
    assert kinds.index("response.output_text.annotation.added") < kinds.index("response.output_text.done")
    message = events[-1]["response"]["output"][-1]["content"][0]
    (citation,) = message["annotations"]
    assert message["text"][citation["start_index"] : citation["end_index"]] == "sandbox:/mnt/data/data.csv"
    content = gateway.client().containers.files.content.retrieve(
        citation["file_id"], container_id=citation["container_id"]
    )
    assert content.read() == b"a,b"
    assert "/mnt/data/data.csv (3 bytes)" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_a_name_takes_one_line_of_what_a_model_is_told(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("open('a\\nb (9 bytes)', 'w').close()"), "Ok."]})
    stream(gateway)
    told = gateway.upstream.requests[1]["messages"][-1]["content"]
    assert told.endswith("files written:\n\n```\n/mnt/data/a\\nb (9 bytes) (0 bytes)\n```")


def test_a_model_is_told_that_there_are_more_files_than_are_looked_at(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("for n in range(10_001): open(str(n), 'w').close()"), "Ok."]})
    stream(gateway)
    told = gateway.upstream.requests[1]["messages"][-1]["content"]
    assert told.endswith("Not all files of work_dir could be looked at: some may be missing here.\n```")


def test_files_beyond_those_that_are_looked_at_are_deleted_and_known_to_be_missing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    client = gateway.client()
    container = client.containers.create(name="c").id
    folder = gateway.services.containers.folder(container)
    sent = client.containers.files.create(container, file=("last", b"x")).id
    url, key = f"{gateway.url}/v1/containers/{container}/files", {"Authorization": f"Bearer {client.api_key}"}
    assert "truncated" not in httpx.get(url, headers=key).json()
    for number in range(10_001):
        (folder / str(number)).mkdir()
    assert httpx.get(url, headers=key).json()["truncated"] is True
    client.containers.files.delete(sent, container_id=container)
    assert not (folder / "last").exists()


def test_uploads_are_listed_by_their_purpose_and_kept_as_long_as_the_gateway_says(new_gateway: NewGateway) -> None:
    files = new_gateway({}).client().files
    kept = [files.create(file=("a", b"a"), purpose=purpose).id for purpose in ("user_data", "assistants")]
    assert [[each.id for each in files.list(purpose=purpose)] for purpose in ("user_data", "assistants", "batch")] == [
        [kept[0]],
        [kept[1]],
        [],
    ]
    assert len(files.list(limit=10_000).data) == 2
    with pytest.raises(openai.BadRequestError, match="<= 10000"):
        files.list(limit=10_001)
    more = [files.create(file=("b", b"b"), purpose="user_data").id for _ in range(20)]
    assert {each.id for each in files.list().data} == {*kept, *more}


def test_a_file_that_has_expired_is_gone(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    client, end = gateway.client(), {"anchor": "created_at", "seconds": 3_600}
    upload = client.uploads.create(
        bytes=1, filename="b", mime_type="text/plain", purpose="user_data", expires_after=end
    )
    part = client.uploads.parts.create(upload.id, data=b"b").id
    made = [
        client.files.create(file=("a", b"a"), purpose="user_data", expires_after=end),
        client.uploads.complete(upload.id, part_ids=[part]).file,
    ]
    assert [(each.expires_at or 0) - each.created_at for each in made if each] == [3_600, 3_600]
    assert client.files.create(file=("c", b"c"), purpose="user_data").expires_at is None
    for seconds in (3_599, 2_592_001, "x"):
        with pytest.raises(openai.BadRequestError, match="seconds"):
            client.files.create(file=("a", b"a"), purpose="user_data", expires_after={**end, "seconds": seconds})
    gateway.services.store.change(Upload, made[0].id, expires_at=1.0)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made[0].id)
    assert [each.filename for each in client.files.list()] == ["c", "b"]
    gateway.services.uploads.sweep()
    assert gateway.services.store.get(Upload, made[0].id) is None


def test_links_in_a_container_lead_nowhere(new_gateway: NewGateway) -> None:
    make = (
        "import os; os.symlink('/etc/hosts', 'file'); os.symlink('/etc', 'folder'); os.mkfifo('pipe'); os.mkdir('sub')"
    )
    said = "sandbox:/mnt/data/file sandbox:/mnt/data/folder/hosts sandbox:/mnt/data/pipe sandbox:/mnt/data/sub"
    gateway = new_gateway({"m": [code(make), ScriptedReply(text=said)]})
    call, message = stream(gateway)[-1]["response"]["output"]
    assert message["content"][0]["annotations"] == []
    assert list(gateway.client().containers.files.list(call["container_id"])) == []


def test_a_figure_is_an_image(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(DRAW), "Ok."]})
    (call,) = outputs(stream(gateway, include=INCLUDE)[-1]["response"])
    (image,) = call["outputs"]
    assert image["type"] == "image"
    assert image["url"].startswith("data:image/png;base64,iVBOR")
    told = gateway.upstream.requests[1]["messages"][-1]["content"]
    assert "sandbox:/mnt/data/" in told
    by_url = new_gateway({"m": [code(DRAW), "Ok."]}, image_urls="content")
    (call,) = outputs(post(by_url, include=INCLUDE).json())
    assert httpx.get(by_url.url + call["outputs"][0]["url"]).content.startswith(b"\x89PNG")


def test_files_come_by_upload_and_by_id(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(open('b.txt').read(), open('/'.join(['.', 'a.txt'])).read())"), "Ok."]})
    client = gateway.client()
    container = client.containers.create(name="files")
    sent = client.containers.files.create(container.id, file=("../../a.txt", b"sent"))
    check(FileCreateResponse, sent.to_dict())
    assert (sent.path, sent.bytes, sent.source) == ("/mnt/data/a.txt", 4, "user")
    upload = client.files.create(file=("b.txt", b"uploaded"), purpose="user_data")
    check(FileObject, upload.to_dict())
    assert client.files.content(upload.id).read() == b"uploaded"
    copied = client.containers.files.create(container.id, file_id=upload.id)
    assert {each.id for each in client.containers.files.list(container.id)} == {sent.id, copied.id}
    (call,) = outputs(post(gateway, tools=in_container(container.id), include=INCLUDE).json())
    assert call["outputs"] == [{"type": "logs", "logs": "uploaded sent\n"}]
    client.containers.files.delete(sent.id, container_id=container.id)
    with pytest.raises(openai.NotFoundError):
        client.containers.files.retrieve(sent.id, container_id=container.id)
    client.files.delete(upload.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(upload.id)


def test_a_new_container_gets_the_files_that_are_named(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(open('b.txt').read())"), "Ok."]})
    upload = gateway.client().files.create(file=("b.txt", b"uploaded"), purpose="user_data")
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [upload.id]}}]
    body = stream(gateway, tools=tools, include=INCLUDE)[-1]["response"]
    assert outputs(body)[0]["outputs"] == [{"type": "logs", "logs": "uploaded\n"}]
    assert body["tools"] == tools
    tools[0]["container"]["file_ids"] = ["file_none"]  # type: ignore[index]
    assert post(gateway, tools=tools).status_code == 404


def test_too_large_a_file_is_refused_and_leaves_nothing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_upload_bytes=100)
    with pytest.raises(openai.APIStatusError) as refused:
        gateway.client().files.create(file=("b.txt", io.BytesIO(b"x" * 101)), purpose="user_data")
    assert refused.value.status_code == 413
    assert list((gateway.services.config.data_dir / "uploads").iterdir()) == []


def test_a_container_takes_no_more_than_it_may(new_gateway: NewGateway) -> None:
    client = new_gateway({}, max_container_bytes=50_000).client()
    container = client.containers.create(name="a")
    client.containers.files.create(container.id, file=("a.bin", b"a" * 40_000))
    with pytest.raises(openai.APIStatusError) as refused:
        client.containers.files.create(container.id, file=("b.bin", b"b" * 40_000))
    assert refused.value.status_code == 413
    assert "may grow by 9,040 bytes more (max_container_bytes); delete files" in refused.value.message
    assert len(list(client.containers.files.list(container.id))) == 1


def test_files_go_up_and_down_in_pieces(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = gateway.client().containers.create(name="large").id
    url, piece = f"{gateway.url}/v1/containers/{id_}/files", b"x" * MIB
    httpx.get(url)
    tracemalloc.start()
    try:
        body = [HEAD, *[piece] * 48, b"\r\n--b--\r\n"]
        file = httpx.post(url, content=iter(body), headers=BOUNDARY, timeout=60).json()
        body[0] = HEAD.replace(b'"x"', b'"y"')
        upload = httpx.post(f"{gateway.url}/v1/files", content=iter(body), headers=BOUNDARY, timeout=60).json()
        given = [{"role": "user", "content": [{"type": "input_file", "file_id": upload["id"]}]}]
        assert post(gateway, input=given, tools=in_container(id_)).json()["status"] == "completed"
        with httpx.stream("GET", f"{url}/{file['id']}/content") as answer:
            assert answer.headers["content-length"] == str(48 * MIB)
            assert sum(map(len, answer.iter_bytes())) == 48 * MIB
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < 16 * MIB
    finally:
        tracemalloc.stop()


def test_a_file_that_grows_while_it_is_sent_is_sent_as_it_was(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    id_ = gateway.client().containers.create(name="growing").id
    file = gateway.client().containers.files.create(id_, file=("a.bin", b"a" * 8 * MIB))
    url = f"{gateway.url}/v1/containers/{id_}/files/{file.id}/content"
    with httpx.stream("GET", url) as answer:
        with open(gateway.services.containers.folder(id_) / "a.bin", "ab") as more:
            more.write(b"b" * 1000)
        assert answer.read() == b"a" * 8 * MIB


def test_files_that_cannot_be_read_now_keep_their_ids(new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = new_gateway({})
    files, container = gateway.services.files, gateway.client().containers.create(name="c").id
    kept = files.put(container, "sub/z", io.BytesIO(b"x")).id
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        assert files.listed(container)[0] == []
    assert [each.id for each in files.listed(container)[0]] == [kept]


@pytest.mark.parametrize("beyond", [0, 10_001], ids=["all are looked at", "not all"])
def test_names_of_files_that_are_gone_are_forgotten(new_gateway: NewGateway, beyond: int) -> None:
    gateway = new_gateway({})
    files, store = gateway.services.files, gateway.services.store
    container = gateway.client().containers.create(name="c").id
    folder = gateway.services.containers.folder(container)
    kept = files.put(container, "z" * 200, io.BytesIO(b"x")).id
    for number in range(3):
        for name in range(600):
            (folder / f"a{number}_{name}").touch()
        (listed, is_whole) = files.listed(container)
        assert is_whole
        assert len(listed) == 601
        again = [each.id for each in files.listed(container)[0]]
        assert again == [each.id for each in listed]
        for name in range(600):
            (folder / f"a{number}_{name}").unlink()
    for number in range(beyond):
        (folder / f"b{number}").mkdir()
    assert len(files.listed(container)[0]) <= 1
    assert [each.id for each in store.find(ContainerFile, container_id=container)] == [kept]
