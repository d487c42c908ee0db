"""Compressed bodies."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.types import Message

from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.body import DecompressionBudget, UnpackedBody
from agent_tools.gateway.requests.decompression import CHUNK_BYTES, decoder_of, zstd
from agent_tools.limits import MIB
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import until
from tests.gateway.conftest import NewGateway

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
BODY = json.dumps({"model": "m", "input": "Hello! " * 1_000}).encode()


def unpack(name: str, data: bytes, step: int) -> bytes:
    decoder = decoder_of(name)
    assert decoder
    found = []
    for start in range(0, len(data), step):
        found += decoder.unpacked(data[start : start + step])
    decoder.finish()
    assert max(map(len, found), default=0) <= CHUNK_BYTES
    return b"".join(found)


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("step", [1, 7, 65_536])
def test_a_body_comes_out_as_it_went_in(name: str, step: int) -> None:
    for plain in (b"", b"a", BODY, bytes(range(256)) * (8 if step == 1 else 4_000)):
        assert unpack(name, PACK[name](plain), step) == plain
    assert unpack(name, b"", step) == b""


@pytest.mark.parametrize("name", PACK)
def test_what_is_cut_goes_on_after_its_end_or_is_something_else_is_refused(name: str) -> None:
    packed = PACK[name](BODY)
    for data in (packed[:-1], packed[: len(packed) // 2], packed + b"a", packed + packed, b"plain text", packed[1:]):
        with pytest.raises(ApiError, match="Content-Encoding") as caught:
            unpack(name, data, 4_096)
        assert caught.value.status == 400


@pytest.mark.parametrize("name", PACK)
def test_a_bomb_costs_a_few_pieces_of_memory(name: str) -> None:
    bomb = PACK[name](bytes(256 * MIB))
    decoder = decoder_of(name)
    assert decoder
    tracemalloc.start()
    total = sum(map(len, decoder.unpacked(bomb)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 256 * MIB
    assert peak < 16 * MIB


@pytest.mark.parametrize("name", PACK)
def test_others_have_their_turn_after_each_piece_of_a_bomb(name: str) -> None:
    pieces = turns = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": PACK[name](bytes(64 * MIB)), "more_body": False}

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        nonlocal pieces
        decoder = decoder_of(name)
        assert decoder
        body = UnpackedBody(receive, decoder, DecompressionBudget(MIB, MIB))
        others = asyncio.create_task(take_turns())
        while (await body())["more_body"]:
            pieces += 1
        others.cancel()

    asyncio.run(main())
    assert turns >= pieces >= 64 * MIB // CHUNK_BYTES


def test_a_window_that_takes_much_memory_is_refused() -> None:
    large = zstd.compress(bytes(MIB), options={zstd.CompressionParameter.window_log: 27})
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    streamed = wide.compress(bytes(MIB)) + wide.flush()
    assert unpack("zstd", large, len(large)) == bytes(MIB), "a frame that tells its size needs no more than that"
    with pytest.raises(ApiError):
        unpack("zstd", streamed, len(streamed))


def test_a_client_may_send_its_body_compressed(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, max_body_bytes=MIB, max_upload_bytes=MIB)
    for name, pack in PACK.items():
        headers = {"Content-Encoding": name, "Content-Type": "application/json"}
        answer = httpx.post(f"{gateway.url}/v1/responses", content=pack(BODY), headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        for path in ("responses", "chat/completions", "files"):
            bomb = pack(b'{"model": "' + bytes(8 * MIB))
            kind = {"Content-Type": "multipart/form-data; boundary=b"} if path == "files" else {}
            answer = httpx.post(f"{gateway.url}/v1/{path}", content=bomb, headers={**headers, **kind}, timeout=30)
            assert answer.status_code in ((400, 413) if path == "files" else (413,)), answer.text
        answer = httpx.post(f"{gateway.url}/v1/responses", content=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_body")
    assert gateway.upstream.requests[0]["messages"][0]["content"] == "Hello! " * 1_000


def test_an_upload_may_be_compressed(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    form = httpx.Request(
        "POST", "http://x", files={"file": ("a.txt", io.BytesIO(b"a" * 1000))}, data={"purpose": "user_data"}
    )
    headers = {"Content-Type": form.headers["content-type"], "Content-Encoding": "gzip"}
    answer = httpx.post(f"{gateway.url}/v1/files", content=gzip.compress(form.read()), headers=headers)
    assert answer.json()["bytes"] == 1000


def test_other_encodings_are_told_what_is_read(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    for encoding in ("br", "deflate", "gzip, gzip", "zstd, gzip", "x" * 200):
        content, headers = zlib.compress(BODY), {"Content-Encoding": encoding}
        answer = httpx.post(f"{gateway.url}/v1/responses", content=content, headers=headers)
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, zstd")
        assert answer.json()["error"]["code"] == "unsupported_encoding"
    answer = httpx.post(f"{gateway.url}/v1/files", content=b"", headers={"Content-Encoding": "identity"})
    assert answer.status_code == 400


def test_compressed_bodies_share_a_budget_but_one_alone_has_its_own_limit() -> None:
    budget, one, two = DecompressionBudget(100, 100), object(), object()
    budget.count(one, 5_000)
    with pytest.raises(ApiError, match="Too many compressed requests") as refused:
        budget.count(two, 1)
    assert refused.value.status == 503
    assert refused.value.headers["Retry-After"]
    budget.release(two)
    budget.count(one, 5_000)
    budget.release(one)
    for each in (one, two):
        budget.count(each, 50)
    with pytest.raises(ApiError):
        budget.count(one, 1)


def test_compressed_bodies_of_one_key_leave_room_for_those_of_another() -> None:
    budget = DecompressionBudget(100, 75)
    one, two, other = (object() for _ in range(3))
    budget.count(one, 70, "me")
    with pytest.raises(ApiError, match="Too many compressed requests"):
        budget.count(two, 6, "me")
    budget.release(two)
    budget.count(other, 25, "you")


def test_a_compressed_body_counts_until_it_has_come(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.", wait_before=go_on)}, max_unpacked_bytes=10_000)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    with ThreadPoolExecutor(1) as pool:
        url, body = f"{gateway.url}/v1/responses", gzip.compress(BODY)
        asked = pool.submit(httpx.post, url, content=body, headers=headers, timeout=30)
        until(lambda: gateway.app.state.jobs.active)
        assert not gateway.services.decompression_budget._of_each
        go_on.set()
        assert asked.result().status_code == 200


def test_a_body_under_way_keeps_others_from_unpacking_and_leaves_its_share_in_the_end(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, max_unpacked_bytes=10_000)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    sent = threading.Event()

    def slowly() -> Iterator[bytes]:
        packed = gzip.compress(BODY + b" " * 500_000)
        yield packed[:-20]
        until(lambda: gateway.services.decompression_budget._of_each)
        sent.set()
        until(lambda: refused and len(gateway.services.decompression_budget._of_each) == 1)
        yield packed[-20:]

    refused: list[httpx.Response] = []
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(httpx.post, f"{gateway.url}/v1/responses", content=slowly(), headers=headers, timeout=30)
        sent.wait()
        refused.append(httpx.post(f"{gateway.url}/v1/responses", content=gzip.compress(BODY), headers=headers))
        assert slow.result().status_code == 200
    assert (refused[0].status_code, refused[0].json()["error"]["code"]) == (503, "overloaded")
    until(lambda: not gateway.services.decompression_budget._of_each)
    answer = httpx.post(f"{gateway.url}/v1/responses", content=gzip.compress(BODY), headers=headers)
    assert answer.status_code == 200
