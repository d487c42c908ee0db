"""Uploads in parts (`/v1/uploads`): with the client that splits files, and what is refused."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agent_tools.containers.failures import StorageFull
from agent_tools.containers.keys import ANYONE
from agent_tools.gateway.chunked import LIFETIME, MAX_PENDING, ChunkedUploads, remove_uploads_of
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.limits import MIB
from tests.gateway.asking import KEYS, upload
from tests.gateway.conftest import Gateway, NewGateway

DATA = bytes(range(256)) * 1_000
ABOUT: dict[str, Any] = {"filename": "data.bin", "purpose": "user_data", "mime_type": "application/octet-stream"}


def begun(gateway: Gateway, size: int, key: str = KEYS[0]) -> Any:
    return gateway.client(key).uploads.create(bytes=size, **ABOUT)


def part(gateway: Gateway, id_: str, data: bytes, key: str = KEYS[0]) -> str:
    return gateway.client(key).uploads.parts.create(id_, data=data).id


def code_of(call: Any) -> tuple[int, str | None]:
    with pytest.raises(openai.APIStatusError) as refused:
        call()
    return refused.value.status_code, refused.value.code


def left_behind(gateway: Gateway) -> list[str]:
    return [path.name for path in (gateway.services.config.data_dir / "chunked").rglob("part_*")]


@pytest.mark.parametrize("part_size", [100_000, 256_000, 1_000_000])
def test_a_client_splits_a_file(new_gateway: NewGateway, part_size: int) -> None:
    gateway = new_gateway({})
    client = gateway.client()
    upload = client.uploads.upload_file_chunked(
        file=DATA, bytes=len(DATA), part_size=part_size, md5=hashlib.md5(DATA).hexdigest(), **ABOUT
    )
    assert (upload.status, upload.bytes, upload.filename, upload.object) == ("completed", 256_000, "data.bin", "upload")
    assert upload.file
    assert upload.expires_at == upload.created_at + 3_600
    assert client.files.content(upload.file.id).read() == DATA
    assert client.files.retrieve(upload.file.id).purpose == "user_data"
    assert left_behind(gateway) == []


def test_a_file_of_a_disk_is_split(new_gateway: NewGateway, work_dir: Path) -> None:
    (work_dir / "here.csv").write_bytes(DATA)
    client = new_gateway({}).client()
    upload = client.uploads.upload_file_chunked(
        file=work_dir / "here.csv", mime_type="text/csv", purpose="assistants", part_size=99_999
    )
    assert upload.file
    assert (upload.file.filename, client.files.content(upload.file.id).read()) == ("here.csv", DATA)


def test_the_order_is_that_of_the_ids(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    upload = begun(gateway, 6)
    last, first, spare = (part(gateway, upload.id, data) for data in (b"def", b"abc", b""))
    client = gateway.client(KEYS[0])
    for wrong in ([first], [first, last, last], [first, "part_1"], [], [f"../{first}", last]):
        assert code_of(lambda ids=wrong: client.uploads.complete(upload.id, part_ids=ids))[0] == 400
    wrong_sum = lambda: client.uploads.complete(upload.id, part_ids=[first, last], md5="0" * 32)  # noqa: E731
    assert code_of(wrong_sum) == (400, "invalid_value")
    done = client.uploads.complete(upload.id, part_ids=[first, spare, last])
    assert done.file
    assert client.files.content(done.file.id).read() == b"abcdef"
    assert code_of(lambda: client.uploads.complete(upload.id, part_ids=[first, last]))[0] == 404
    assert code_of(lambda: part(gateway, upload.id, b""))[0] == 404


def test_another_key_sees_nothing_of_it(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    upload = begun(gateway, 3)
    other = gateway.client(KEYS[1]).uploads
    for call in (
        lambda: part(gateway, upload.id, b"abc", KEYS[1]),
        lambda: other.complete(upload.id, part_ids=[]),
        lambda: other.cancel(upload.id),
        lambda: other.cancel("upload_nothing"),
        lambda: other.cancel("..%2f..%2fuploads"),
    ):
        assert code_of(call) in ((404, "upload_not_found"), (404, "unknown_url"))
    assert httpx.post(f"{gateway.url}/v1/uploads", json={}).status_code == 401


def test_a_cancelled_upload_leaves_nothing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    upload = begun(gateway, 3)
    part(gateway, upload.id, b"abc")
    assert gateway.client(KEYS[0]).uploads.cancel(upload.id).status == "cancelled"
    assert left_behind(gateway) == []
    assert code_of(lambda: part(gateway, upload.id, b"abc"))[0] == 404


def test_sizes_and_numbers_are_bounded(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, max_upload_bytes=1_000, max_uploads_bytes=3_000)
    assert code_of(lambda: begun(gateway, 1_001)) == (413, "file_too_large")
    assert code_of(lambda: begun(gateway, -1))[0] == 400
    upload = begun(gateway, 10)
    assert code_of(lambda: part(gateway, upload.id, b"a" * 11))[0] == 400
    assert code_of(lambda: part(gateway, upload.id, b"a" * 3_000_000)) == (413, "file_too_large")
    part(gateway, upload.id, b"a" * 6)
    assert code_of(lambda: part(gateway, upload.id, b"a" * 6))[0] == 400
    assert len(left_behind(gateway)) == 1
    for _ in range(2):
        begun(gateway, 1_000)
    assert code_of(lambda: begun(gateway, 1_000)) == (400, "storage_limit_exceeded")  # what was begun counts
    begun(gateway, 1_000, KEYS[1])
    for _ in range(MAX_PENDING - 3):
        begun(gateway, 1)
    assert code_of(lambda: begun(gateway, 1)) == (400, "too_many")


def test_incomplete_uploads_and_files_have_one_share(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, max_uploads_bytes=1_000)
    client, incomplete = gateway.client(KEYS[0]), begun(gateway, 600)
    parts = [part(gateway, incomplete.id, b"a" * 600)]
    assert code_of(lambda: upload(client, 500)) == (400, "storage_limit_exceeded")
    upload(gateway.client(KEYS[1]), 500)
    upload(client, 400)
    assert client.uploads.complete(incomplete.id, part_ids=parts).status == "completed"
    assert code_of(lambda: upload(client, 1)) == (400, "storage_limit_exceeded")


def test_an_upload_and_a_file_that_begin_at_once_have_one_share(new_gateway: NewGateway) -> None:
    services = new_gateway({}, max_uploads_bytes=1_000).services
    looking, pending = threading.Barrier(2), services.shares.pending

    def pending_once_both_look(owner: str) -> int:
        found = pending(owner)
        with contextlib.suppress(threading.BrokenBarrierError):  # one alone has waited for long
            looking.wait(0.5)
        return found

    services.shares.pending = pending_once_both_look
    with ThreadPoolExecutor(2) as pool:
        ends = (
            pool.submit(services.chunked.create, "me", "a", "user_data", 600),
            pool.submit(services.uploads.add, "me", "b", "user_data", io.BytesIO(bytes(600))),
        )
        refused = [each.exception() for each in ends if each.exception()]
    assert [type(each) for each in refused] == [StorageFull]


def test_a_part_has_the_room_that_its_upload_reserved(new_gateway: NewGateway) -> None:
    size = 4 * MIB  # more than forms have beside their files
    gateway = new_gateway({}, max_uploads_bytes=2 * size)
    client, whole, other = gateway.client(), begun(gateway, size), begun(gateway, size)
    with gateway.services.shares.arriving(ANYONE, size) as arrive:  # another file of the same owner
        arrive(size)
        parts = [part(gateway, other.id, bytes(size))]
    assert client.uploads.complete(other.id, part_ids=parts).status == "completed"
    half = [part(gateway, whole.id, bytes(size // 2)) for _ in range(2)]
    assert client.uploads.complete(whole.id, part_ids=half).status == "completed"


def test_what_is_not_completed_in_an_hour_is_removed(new_gateway: NewGateway) -> None:
    services = new_gateway({}).services
    now = [1_000_000.0]
    chunked = ChunkedUploads(services.config, services.shares, services.uploads, lambda: now[0])
    upload = chunked.create("me", "a", "user_data", 3)
    chunked.add_part(upload, io.BytesIO(b"abc"))
    now[0] += LIFETIME
    assert chunked.sweep() == 0
    assert chunked.find("me", upload.id)
    now[0] += 1
    with pytest.raises(ApiError, match="expired"):
        chunked.find("me", upload.id)
    assert chunked.sweep() == 0
    with pytest.raises(ApiError, match="No upload"):
        chunked.find("me", upload.id)
    assert chunked.left(upload) == 3
    with pytest.raises(ApiError, match="No upload"):
        chunked.add_part(upload, io.BytesIO(b"abc"))


def test_an_upload_leaves_no_folder_when_it_ends(new_gateway: NewGateway) -> None:
    services = new_gateway({}).services
    chunked = services.chunked
    for _ in range(3):
        chunked.cancel(chunked.create("me", "a", "user_data", 3))
    upload = chunked.create("me", "a", "user_data", 3)
    done, file = chunked.complete(upload, [chunked.add_part(upload, io.BytesIO(b"abc"))], None)
    assert (done.status, done.file_id) == ("completed", file.id)
    assert list((services.config.data_dir / "chunked").iterdir()) == []


@pytest.mark.parametrize("about", ["", '{"id": "upl', "[]", '{"unknown": 1}'])
def test_a_description_that_cannot_be_read_hinders_no_other_upload(new_gateway: NewGateway, about: str) -> None:
    services = new_gateway({}).services
    now = [time.time()]
    chunked = ChunkedUploads(services.config, services.shares, services.uploads, lambda: now[0])
    upload, folders = chunked.create("me", "a", "user_data", 3), services.config.data_dir / "chunked"
    (folders / upload.id / "about.json").write_text(about)
    remove_uploads_of("me", services.config.data_dir)
    with pytest.raises(ApiError, match="No upload"):
        chunked.find("me", upload.id)
    assert chunked.cancel(chunked.create("me", "b", "user_data", 3)).status == "cancelled"
    now[0] += LIFETIME + 60
    assert chunked.sweep() == 0
    assert list(folders.iterdir()) == []


def test_one_of_several_completes_it(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    upload = begun(gateway, 3)
    id_, client, ends = part(gateway, upload.id, b"abc"), gateway.client(KEYS[0]), list[int]()

    def complete() -> None:
        try:
            client.uploads.complete(upload.id, part_ids=[id_])
            ends.append(200)
        except openai.APIStatusError as refused:
            ends.append(refused.status_code)

    threads = [threading.Thread(target=complete) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert ends.count(200) == 1
    assert set(ends) <= {200, 404, 409}
    assert len(list(client.files.list())) == 1


def test_an_upload_whose_completion_was_killed_is_completed(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    upload = begun(gateway, 3)
    id_, client = part(gateway, upload.id, b"abc"), gateway.client(KEYS[0])
    mark = gateway.services.config.data_dir / "chunked" / upload.id / "joining"
    with mark.open("wb") as theirs:  # of another gateway, which is killed before it removes anything
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert code_of(lambda: client.uploads.complete(upload.id, part_ids=[id_])) == (409, "under_way")
        assert code_of(lambda: client.uploads.cancel(upload.id)) == (409, "under_way")
    assert client.uploads.complete(upload.id, part_ids=[id_]).status == "completed"
