from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.network import PACKAGE_HOSTS, NetworkPolicy
from agent_tools.errors import InvalidParams
from agent_tools.machine.event_loop import join, leave
from agent_tools.runtime.egress.packages import DRAFT, MAX_PARTS, PackageCache, Page, Pages, cache_of, read_page
from agent_tools.runtime.egress.refusals import NotReached
from tests.unit.runtime.egress.conftest import Keep, OpenNetwork
from tests.unit.runtime.egress.network import Hop, Network, Server, certificate

HOST = "files.pythonhosted.org"
WHEEL, PATH = b"a wheel" * 50_000, "/packages/ab/thing-1-py3-none-any.whl"
SHA256 = hashlib.sha256(WHEEL).hexdigest()


def file_of(**more: Any) -> dict[str, Any]:
    url = f"https://files.pythonhosted.org{PATH}"
    return {"filename": "thing-1-py3-none-any.whl", "url": url, "hashes": {"sha256": SHA256}, **more}


def page_of(*files: dict[str, Any]) -> bytes:
    return json.dumps({"name": "thing", "files": list(files), "meta": {"api-version": "1.3"}}).encode()


class Index:
    """An index of one package: its page and its file, and what was asked of it."""

    def __init__(self) -> None:
        self.page = page_of(file_of())
        self.file = WHEEL
        self.asked: list[str] = []
        self.pages: Callable[[str], bytes] | None = None  # of other packages

    def answer(self, got: bytes) -> bytes:
        path = got.split(b" ")[1].decode()
        self.asked.append(path)
        content = {"/simple/thing/": self.page, PATH: self.file}.get(path)
        if content is None and self.pages and path.startswith("/simple/"):
            content = self.pages(path)
        status = b"200 OK" if content is not None else b"404 Not Found"
        return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(content or b"")) + (content or b"")


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def network(
    keep: Keep, open_network: OpenNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index
) -> Network:
    context, bundle = certificate(tmp_path, *PACKAGE_HOSTS)
    monkeypatch.setenv("PIP_CERT", str(bundle))
    server = keep(Server(index.answer, context, takes=lambda got: got.endswith(b"\r\n\r\n")))
    return open_network(["pypi"], hop=keep(Hop(server)), packages_cache=str(tmp_path / "cache"))


def get(network: Network, url: str) -> tuple[int, bytes]:
    back = network.say(f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return int(back[9:12]), back.partition(b"\r\n\r\n")[2]


PAGE_URL, FILE_URL = "http://pypi.org/simple/thing/", f"http://files.pythonhosted.org{PATH}"


def test_a_page_leads_to_files_of_the_cache_which_are_fetched_once(network: Network, index: Index) -> None:
    status, page = get(network, PAGE_URL)
    (file,) = json.loads(page)["files"]
    assert (status, file["url"], file["hashes"]) == (200, FILE_URL, {"sha256": SHA256})
    assert [get(network, FILE_URL), get(network, FILE_URL)] == [(200, WHEEL)] * 2
    assert index.asked == ["/simple/thing/", PATH]
    assert [each.port for each in network.taken(3)] == [80] * 3


def test_a_file_that_several_want_at_once_is_fetched_once(network: Network, index: Index) -> None:
    get(network, PAGE_URL)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: get(network, FILE_URL), range(4))) == [(200, WHEEL)] * 4
    assert index.asked.count(PATH) == 1


def test_connections_may_speak_in_another_order_than_they_were_opened_in(network: Network) -> None:
    with network.connect() as first, network.connect() as second:
        for late in (second, first):
            assert get(network, PAGE_URL)[0] == 200
            late.sendall(f"GET {PAGE_URL} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert late.recv(12) == b"HTTP/1.1 200"


def test_a_file_of_another_hash_is_neither_given_nor_kept(network: Network, index: Index, tmp_path: Path) -> None:
    index.file = b"evil"
    get(network, PAGE_URL)
    assert get(network, FILE_URL)[0] == 502
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        FILE_URL,
        *("http://pypi.org/simple/", "http://pypi.org/", "http://pypi.org/simple/../x/", "http://pypi.org/simple/a/b/"),
        *("http://pypi.org/legacy/", "http://files.pythonhosted.org/../../etc/passwd", f"http://pypi.org{PATH}"),
    ],
)
def test_what_no_page_named_is_not_asked_for(network: Network, index: Index, url: str) -> None:
    assert get(network, url)[0] == 404
    assert index.asked == []


@pytest.mark.parametrize(
    "page",
    [
        *(b"", b"{", b"[]", b"{}", b'{"name": "x", "files": [1]}', b'{"name": "x", "files": {"a": 1}}'),
        *(b"[" * 100_000, page_of({"filename": "x"}), page_of(file_of(hashes=[]))),
    ],
)
def test_a_page_that_cannot_be_read_is_a_failure(network: Network, index: Index, page: bytes) -> None:
    index.page = page
    assert get(network, PAGE_URL)[0] == 502


@pytest.mark.parametrize(
    "file",
    [
        file_of(url=f"https://evil.example{PATH}"),
        file_of(url=f"http://files.pythonhosted.org{PATH}"),
        file_of(hashes={"md5": "0"}),
        file_of(hashes={"sha256": "../../x"}),
    ],
)
def test_a_file_that_lies_elsewhere_or_has_no_hash_is_not_shown(
    network: Network, index: Index, file: dict[str, Any]
) -> None:
    index.page = page_of(file)
    status, page = get(network, PAGE_URL)
    assert (status, json.loads(page)["files"]) == (200, [])
    assert get(network, FILE_URL)[0] == 404


def test_a_page_is_asked_for_once_in_a_while(network: Network, index: Index) -> None:
    first = get(network, PAGE_URL)
    assert first[0] == 200
    assert [get(network, PAGE_URL), get(network, PAGE_URL)] == [first] * 2
    assert index.asked == ["/simple/thing/"]


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1,"])
def test_a_page_of_too_many_parts_is_not_parsed(network: Network, index: Index, part: bytes) -> None:
    index.page = b'{"name": "thing", "files": [' + part * MAX_PARTS + b"1]}"
    assert get(network, PAGE_URL)[0] == 502
    assert network.taken()[0].reason == "a page of too many parts"


@pytest.mark.parametrize(("thread", "url"), [("agent-tools-pages", PAGE_URL), ("agent-tools-packages", FILE_URL)])
def test_other_requests_are_answered_while_a_page_is_parsed_or_the_disk_is_slow(
    network: Network, thread: str, url: str
) -> None:
    me, release = object(), threading.Event()
    shared = join(me)
    try:
        if url == FILE_URL:
            assert get(network, PAGE_URL)[0] == 200
        done_first = asyncio.run_coroutine_threadsafe(shared.beside(thread, 1, release.wait), shared.loop)
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(get, network, url)
            assert get(network, "http://pypi.org/other/")[0] == 404
            with pytest.raises(FutureTimeout):  # it waits for its turn
                answer.result(0.5)
            release.set()
            assert answer.result()[0] == 200
        assert done_first.result()
    finally:
        release.set()
        leave(shared, me)


def test_pages_of_a_sandbox_are_fetched_one_at_a_time(network: Network, index: Index) -> None:
    inside: list[str] = []
    met = threading.Event()

    def answer(path: str) -> bytes:
        inside.append(path)
        if len(inside) > 1:
            met.set()
        met.wait(0.2)  # for another page, which must not come
        inside.remove(path)
        return page_of(file_of())

    index.pages = answer
    with ThreadPoolExecutor(4) as threads:
        urls = [f"http://pypi.org/simple/thing{number}/" for number in range(4)]
        assert [status for status, _ in threads.map(partial(get, network), urls)] == [200] * 4
    assert not met.is_set()


def test_older_pages_make_room_for_newer_ones_their_texts_first() -> None:
    def read(name: str) -> Page:
        metadata = {"core-metadata": {"sha256": "ab" * 32}}
        return read_page(page_of(*(file_of(url=f"https://{HOST}/{name}/{n}", **metadata) for n in range(10))))

    one = read("a")
    pages = Pages(4 * one.size - 2 * len(one.text or b""))
    for name in "abcd":
        pages.add(name, read(name))
    assert [pages.text(name) is not None for name in "abcd"] == [False, False, True, True]
    assert [pages.hash_of(f"/{name}/9") for name in "abcd"] == [SHA256] * 4
    assert pages.hash_of("/a/9.metadata") == "ab" * 32
    for name in "efghijklmnop":
        pages.add(name, read(name))
    assert [bool(pages.hash_of(f"/{name}/9")) for name in "abop"] == [False, False, True, True]
    pages.add("q", read_page(page_of(*(file_of(url=f"https://{HOST}/q/{n}") for n in range(1_000)))))
    assert [bool(pages.hash_of(f"/{name}/9")) for name in "opq"] == [False, False, True]


def test_a_package_that_is_not_there_is_not_found(network: Network) -> None:
    assert get(network, "http://pypi.org/simple/other/")[0] == 404


def test_the_least_used_files_make_room(tmp_path: Path) -> None:
    cache = PackageCache(tmp_path / "new", 250)
    names = []
    for number in range(4):
        draft = cache.begin()
        draft.write(bytes([number]) * 100)
        names.append(draft.digest.hexdigest())
        os.utime(cache.keep(draft, names[-1]), (number, number))
        draft.close()
    assert [cache.find(name) is not None for name in names] == [False, False, True, True]


def test_a_draft_that_is_not_kept_goes_away(tmp_path: Path) -> None:
    cache = PackageCache(tmp_path, 100)
    draft = cache.begin()
    with pytest.raises(NotReached):
        cache.keep(draft, SHA256)
    draft.close()
    assert list(tmp_path.iterdir()) == []


def test_files_that_come_are_together_no_larger_than_the_cache(tmp_path: Path) -> None:
    cache = PackageCache(tmp_path, 100)
    first, second = cache.begin(), cache.begin()
    first.write(bytes(60))
    second.write(bytes(40))
    with pytest.raises(NotReached, match="max_packages_cache"):
        second.write(b"1")
    first.close()
    second.write(bytes(60))
    with pytest.raises(NotReached, match="max_packages_cache"):
        second.write(b"1")
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_sandboxes_with_the_same_cache_share_its_limit(tmp_path: Path) -> None:
    first, second = cache_of(tmp_path, 100), cache_of(tmp_path, 100)
    with closing(first.begin()) as draft, closing(second.begin()) as other:
        draft.write(bytes(60))
        with pytest.raises(NotReached, match="max_packages_cache"):
            other.write(bytes(60))
    assert cache_of(tmp_path / "other", 100) is not first


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append((tmp_path / name).exists()))
    with closing(PackageCache(tmp_path, 100).begin()) as draft:
        draft.write(b"1")
        name = draft.digest.hexdigest()
        PackageCache(tmp_path, 100).keep(draft, name)
    assert synced == [False]


def test_room_is_made_of_files_that_are_there_and_of_drafts_that_nobody_goes_on_with(tmp_path: Path) -> None:
    cache, left = PackageCache(tmp_path, 100), tmp_path / f"{DRAFT}left"
    left.write_bytes(bytes(90))
    os.utime(left, (1, 1))
    with closing(cache.begin()) as comes, closing(cache.begin()) as comes_too:
        comes_too.write(b"1" * 50)
        comes.write(b"2" * 50)
        kept = cache.keep(comes, comes.digest.hexdigest())
        assert kept.exists()
        assert not left.exists()
        assert cache.keep(comes_too, comes_too.digest.hexdigest()).exists()


def test_a_cache_is_for_lists_with_the_index() -> None:
    with pytest.raises(InvalidParams, match="does not allow 'pypi'"):
        NetworkPolicy.read({"allow": ["a.org"], "packages_cache": "/tmp/x"})
