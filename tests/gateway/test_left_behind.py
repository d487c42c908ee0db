"""Whatever is refused, revoked, deleted or abandoned in the middle leaves nothing behind, and costs nobody else."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any

import httpx
import pytest

from agent_tools.containers.failures import ContainerExists, RowsAway, StorageFull, UploadNotFound
from agent_tools.containers.records import ContainerFile, ContainerRecord, Upload
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.conversations.stored import StoredConversations
from agent_tools.gateway.files import HALF, HALF_SECONDS
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.responses import job as response_job
from agent_tools.gateway.responses.input_files import GONE
from agent_tools.gateway.store.records import ConversationItem, StoredConversation
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, SLEEP, code, is_idle, outputs, post, until, upload
from tests.gateway.conftest import Gateway, NewGateway


def ok(_: Any) -> ScriptedReply:
    return ScriptedReply("Ok.")


def active(gateway: Gateway) -> int:
    return gateway.services.store.count(ContainerRecord, status="active")


def text_part(kind: str, **more: Any) -> list[dict[str, Any]]:
    file = {"type": "input_file", "filename": "a.txt", "file_data": "aGk="}
    return [{"role": "user", "content": [file, {"type": kind, **more}]}]


REFUSED: dict[str, tuple[dict[str, Any], int]] = {
    "an unknown upload": (
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_none"]}}]},
        404,
    ),
    "an unknown part after a file": ({"input": text_part("bad")}, 400),
}


@pytest.mark.parametrize(("body", "status"), REFUSED.values(), ids=REFUSED)
def test_a_refused_response_leaves_no_container(new_gateway: NewGateway, body: dict[str, Any], status: int) -> None:
    gateway = new_gateway({"m": ok})
    assert post(gateway, **body).status_code == status
    assert active(gateway) == 0


def test_a_refused_container_is_none(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ok}, max_container_bytes=1_000)
    large = upload(gateway.client(), 5_000)
    answer = httpx.post(f"{gateway.url}/v1/containers", json={"name": "x", "file_ids": [large.id]})
    assert (answer.status_code, active(gateway)) == (413, 0)


def test_a_container_whose_row_cannot_be_written_leaves_no_folder(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = new_gateway({"m": ok})

    def locked(*_: Any) -> None:
        raise RowsAway

    monkeypatch.setattr(gateway.services.store, "add", locked)
    assert httpx.post(f"{gateway.url}/v1/containers", json={"name": "x"}).status_code == 503
    assert os.listdir(gateway.services.config.data_dir / "containers") == []


def test_a_container_that_cannot_be_made_twice_costs_the_first_no_file(new_gateway: NewGateway) -> None:
    containers = new_gateway({}).services.containers
    made = containers.create("me", ContainerSpec("x"))
    (containers.folder(made.id) / "kept").write_text("kept")
    with pytest.raises(ContainerExists):
        containers.create("me", ContainerSpec("x"), made.id)
    assert os.listdir(containers.folder(made.id)) == ["kept"]


def test_code_that_is_refused_on_the_page_leaves_no_container(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ok}, max_responses=1)
    run = f"{gateway.url}/page/run"
    first = threading.Thread(target=lambda: httpx.post(run, json={"code": SLEEP}, timeout=60))
    first.start()
    until(lambda: any(gateway.services.containers.running().values()))
    assert (httpx.post(run, json={"code": "1"}).status_code, active(gateway)) == (429, 1)
    (row,) = gateway.services.store.find(ContainerRecord)
    httpx.post(f"{gateway.url}/page/stop", json={"container": row.id})
    first.join()


def test_a_key_that_is_revoked_while_a_response_is_planned_ends_it(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.", wait_before=may_answer)}, named_keys=True)
    services, keys, made = gateway.services, NamedKeys(gateway.services.store), response_job._made
    key = keys.add("one", KeyLimits())
    services._read_keys()

    def revoking(*args: Any) -> Any:
        job = made(*args)
        keys.revoke("one")
        services._read_keys()
        return job

    monkeypatch.setattr(response_job, "_made", revoking)
    headers = {"Authorization": f"Bearer {key}"}
    httpx.post(f"{gateway.url}/v1/responses", json={"model": "m", "input": "x", "background": True}, headers=headers)
    until(lambda: is_idle(gateway))
    may_answer.set()


def test_a_file_that_is_named_while_its_container_is_deleted_leaves_no_row(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = new_gateway({"m": [code("open('a.txt', 'w').write('x')"), "Ok."]})
    store, add = gateway.services.store, gateway.services.store.add_if_new
    container = f"{gateway.url}/v1/containers/{outputs(post(gateway).json())[0]['container_id']}"

    def deleted_meanwhile(*records: Any) -> bool:
        if isinstance(records[0], ContainerFile):
            httpx.delete(container)
        return add(*records)

    monkeypatch.setattr(store, "add_if_new", deleted_meanwhile)
    httpx.get(f"{container}/files")
    assert store.count(ContainerFile) == 0


def test_an_upload_that_was_never_written_whole_goes_after_an_hour(new_gateway: NewGateway) -> None:
    services = new_gateway({}).services
    folder = services.config.data_dir / "uploads"
    for name, age in (("old", 2 * HALF_SECONDS), ("new", 0.0)):
        half = folder / f"file_{name}{HALF}"
        half.write_bytes(b"half")
        os.utime(half, (time.time() - age, time.time() - age))
    services.uploads.sweep()
    assert os.listdir(folder) == [f"file_new{HALF}"]


def test_no_upload_is_there_without_its_row(new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = new_gateway({"m": ok})
    store, folder = gateway.services.store, gateway.services.config.data_dir / "uploads"
    add, there = store.add, list[str]()

    def added(*records: Any) -> None:
        there.extend(os.listdir(folder))
        add(*records)
        if len(there) == 2:
            gateway.services.uploads.delete(there[1].removesuffix(HALF))  # a client found it in the list

    monkeypatch.setattr(store, "add", added)
    first = gateway.services.uploads.add("me", "a", "user_data", io.BytesIO(b"x"))
    assert there == [f"{first.id}{HALF}"]
    gateway.services.uploads.delete(first.id)
    with pytest.raises(UploadNotFound):
        gateway.services.uploads.add("me", "a", "user_data", io.BytesIO(b"x"))
    assert (store.count(Upload), os.listdir(folder)) == (0, [])


def test_an_upload_that_is_refused_writes_nothing_to_the_database(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = new_gateway({}, max_uploads_bytes=1).services
    written: list[type[Any]] = []
    monkeypatch.setattr(services.store, "delete", lambda kind, **_: written.append(kind))
    with pytest.raises(StorageFull):
        services.uploads.add("me", "a", "user_data", io.BytesIO(b"two"))
    assert Upload not in written
    assert os.listdir(services.config.data_dir / "uploads") == []


def test_an_upload_that_is_half_deleted_is_not_found(new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = new_gateway({"m": ok})
    store, delete = gateway.services.store, gateway.services.store.delete
    file = f"{gateway.url}/v1/files/{upload(gateway.client(), 5).id}"

    def locked(kind: Any, **where: Any) -> int:
        if kind is Upload:
            raise RowsAway
        return delete(kind, **where)

    monkeypatch.setattr(store, "delete", locked)
    assert httpx.delete(file).status_code == 503
    monkeypatch.undo()
    assert httpx.get(f"{file}/content").status_code == 404
    assert httpx.delete(file).status_code == 200


def test_a_conversation_that_is_used_is_not_swept(new_gateway: NewGateway) -> None:
    swept: list[StoredConversations] = []

    def reply(_: Any) -> ScriptedReply:
        swept[0].sweep()
        return ScriptedReply("Ok.")

    gateway = new_gateway({"m": reply}, retention=1_000)
    swept.append(gateway.services.stored_conversations)
    id_ = old_conversation(gateway)
    assert post(gateway, conversation=id_, tools=[]).json()["conversation"] == {"id": id_}


def test_a_conversation_that_is_added_to_while_it_is_swept_stays(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = new_gateway({"m": ok}, retention=1_000)
    store, page = gateway.services.store, gateway.services.store.page
    id_ = old_conversation(gateway)

    def added_meanwhile(kind: Any, *args: Any, **where: Any) -> list[Any]:
        found: list[Any] = page(kind, *args, **where)
        if kind is StoredConversation and found:
            items = {"items": [{"role": "user", "content": "more"}]}
            assert httpx.post(f"{gateway.url}/v1/conversations/{id_}/items", json=items).status_code == 200
        return found

    monkeypatch.setattr(store, "page", added_meanwhile)
    gateway.services.stored_conversations.sweep()
    assert (store.count(StoredConversation), store.count(ConversationItem)) == (1, 1)


def old_conversation(gateway: Gateway) -> str:
    id_: str = httpx.post(f"{gateway.url}/v1/conversations", json={}).json()["id"]
    gateway.services.store.change(StoredConversation, id_, used_at=time.time() - 2_000)
    return id_


def test_a_conversation_whose_items_cannot_be_written_is_none(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = new_gateway({"m": ok})
    store, rows = gateway.services.store, StoredConversations._rows

    def twice(*args: Any) -> list[ConversationItem]:
        return 2 * rows(*args)

    monkeypatch.setattr(StoredConversations, "_rows", twice)
    body = {"items": [{"role": "user", "content": "x"}]}
    assert httpx.post(f"{gateway.url}/v1/conversations", json=body).status_code >= 500
    assert store.count(StoredConversation) == 0


def test_a_conversation_goes_on_without_an_upload_that_was_deleted(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ok})
    client = gateway.client()
    file = upload(client, 5)
    id_ = httpx.post(f"{gateway.url}/v1/conversations", json={}).json()["id"]
    content = [{"type": "input_file", "file_id": file.id}]
    assert post(gateway, conversation=id_, input=[{"role": "user", "content": content}]).status_code == 200
    client.files.delete(file.id)
    assert post(gateway, conversation=id_, input="And now?").status_code == 200
    assert GONE in str(gateway.upstream.requests[-1]["messages"])
    again = [{"role": "user", "content": content}]
    assert post(gateway, input=again).status_code == 404, "a new one has to be there"


def test_clients_that_have_left_wait_for_no_sandbox(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(SLEEP)]}, max_sandboxes=1, max_queue=2, queue_timeout=60)
    first = post(gateway, background=True).json()["id"]
    until(lambda: any(gateway.services.containers.running().values()))
    for path, body in {"responses": {"input": "x"}, "chat/completions": {"messages": [{"role": "user"}]}}.items():
        asked = {"model": "m", "tools": [CODE_TOOL], **body}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{gateway.url}/v1/{path}", json=asked, timeout=0.4)
    until(lambda: gateway.services.containers.queue.waiting == 0)
    httpx.post(f"{gateway.url}/v1/responses/{first}/cancel", timeout=30)
    until(lambda: is_idle(gateway))


def test_a_body_of_many_levels_or_with_numbers_of_no_json_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ok})
    deep = "[" * 600 + "]" * 600
    for value in (f'{{"a": {deep}}}', '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 5}'):
        body = f'{{"model": "m", "input": "x", "background": true, "metadata": {value}}}'
        answer = httpx.post(f"{gateway.url}/v1/responses", content=body)
        assert answer.status_code == 400, value[:20]
    assert gateway.app.state.jobs.active == 0


@pytest.mark.parametrize("path", ["responses", "conversations", "responses/input_tokens"])
@pytest.mark.parametrize("name", ["type", "id", "approval_request_id"])
def test_a_name_of_an_item_that_is_no_text_is_refused(new_gateway: NewGateway, path: str, name: str) -> None:
    item = {"role": "user", "content": "x", name: []}
    answer = httpx.post(
        f"{new_gateway({'m': ok}).url}/v1/{path}", json={"model": "m", "input": [item], "items": [item]}
    )
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


def test_a_form_is_known_in_whatever_case_it_is_named(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    container = httpx.post(f"{gateway.url}/v1/containers", json={"name": "x"}).json()["id"]
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--B--\r\n'
    headers = {"content-type": "Multipart/Form-Data; boundary=B"}
    url = f"{gateway.url}/v1/containers/{container}/files"
    assert httpx.post(url, content=form, headers=headers).status_code == 200
