import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import pytest

from agent_tools.engines.guest import Guest
from agent_tools.errors import FileRejected
from agent_tools.limits import Limits
from agent_tools.results.execution import StagedFile
from agent_tools.runtime.files.download import _checked, _public_address, open_url
from agent_tools.runtime.files.workspace import Workspace, is_url, safe_name

DEADLINE = time.monotonic() + 3_600
DRIPS = 150  # pieces of a slow answer, one every 0.02 s


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        *(("http://a/b", True), ("HTTPS://a/b", True), ("file:///a", False), ("ftp://a", False)),
        *(("http:/a", False), ("/http://a", False), ("", False)),
    ],
)
def test_only_http_and_https_are_urls(source: str, answer: bool) -> None:
    assert is_url(source) is answer


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://localhost/", "private or reserved"),
        ("http://127.0.0.1:8080/", "private or reserved"),
        ("http://127.1/", "private or reserved"),
        ("http://0/", "private or reserved"),
        ("http://2130706433/", "private or reserved"),
        ("http://0x7f.1/", "private or reserved"),
        ("http://0x7f000001/", "private or reserved"),
        ("http://0177.0.0.1/", "private or reserved"),
        ("http://169.254.169.254/latest/meta-data/", "private or reserved"),
        ("http://[::1]/", "private or reserved"),
        ("http://[::ffff:127.0.0.1]/", "private or reserved"),
        ("http://[fd00:ec2::254]/", "private or reserved"),
        ("http://[64:ff9b::7f00:1]/", "private or reserved"),
        ("http://user:pw@8.8.8.8/", "credentials"),
        ("http://user@8.8.8.8/", "credentials"),
        ("http://8.8.8.8@127.0.0.1/", "credentials"),
        ("file:///etc/passwd", "only http and https"),
        ("ftp://8.8.8.8/x", "only http and https"),
        ("gopher://8.8.8.8/", "only http and https"),
        ("http:///x", "with a host"),
        ("http://8.8.8.8:99999/", "malformed"),
        ("http://8.8.8.8:x/", "malformed"),
        ("http://[::1/", "malformed"),
        ("http://" + "a" * 300 + "/", "has no address"),
        ("http://\u2603.example/", "not a valid name"),
    ],
    ids=lambda part: part[:40],
)
def test_a_url_is_refused_before_anything_is_sent(url: str, reason: str) -> None:
    with pytest.raises(FileRejected, match=reason):
        open_url(url, Limits())


def test_a_name_beyond_ascii_is_asked_for_as_browsers_do() -> None:
    assert _checked("https://straße.de:8443/ä?x=1").geturl() == "https://xn--strae-oqa.de:8443/ä?x=1"
    assert _checked("https://BÜCHER.de/").hostname == "xn--bcher-kva.de"


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1/", "//127.0.0.1/", "http://169.254.169.254/latest/", "https://[::1]/", "//2130706433/x"),
        *("file:///etc/passwd", "ftp://8.8.8.8/", "http://user:pw@8.8.8.8/", "http://8.8.8.8:99999/"),
    ],
)
def test_a_redirect_from_a_public_host_is_checked_like_a_first_url(location: str) -> None:
    with pytest.raises(FileRejected):
        _public_address(_checked(urljoin("https://8.8.8.8/data.csv", location)), False, DEADLINE)


def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    assert _public_address(urlsplit("http://8.8.8.8/"), False, DEADLINE) == "8.8.8.8"
    assert _public_address(urlsplit("http://0x7f.1/"), True, DEADLINE) == "127.0.0.1"


def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    done = threading.Event()

    def look_up(*_: object) -> list[str]:
        done.wait(10)
        return ["8.8.8.8"]

    with pytest.raises(FileRejected, match=r"^data\.org took too long$"):
        _public_address(urlsplit("http://data.org/"), False, time.monotonic() + 0.01, look_up)
    done.set()


# -- with a server on this machine ------------------------------------------------------------------------------------

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """Answers each path as the test says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[BaseHTTPRequestHandler] = []
        self.sent_all = threading.Event()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self)
        self.server.answers[urlsplit(self.path).path](self)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answer(status: int = 200, body: bytes = b"content", **headers: str) -> Answer:
    def give(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return give


def drip(first: bytes) -> Answer:
    """Begin an answer, then send the rest very slowly; `sent_all` is set if the client listens to the end."""

    def give(request: BaseHTTPRequestHandler) -> None:
        assert isinstance(request.server, Server)
        request.wfile.write(first)
        with contextlib.suppress(OSError):
            for _ in range(DRIPS):
                request.wfile.write(b"x")
                threading.Event().wait(0.02)
            request.server.sent_all.set()

    return give


def fetch(url: str, limits: Limits | None = None) -> bytes:
    return b"".join(open_url(url, limits or Limits(), allow_private=True).chunks)


def test_content_and_name_come_from_the_server(server: Server) -> None:
    server.answers["/a/data.csv"] = answer(body=b"x" * 1_000_000)
    download = open_url(server.url("/a/data.csv?key=1#part"), Limits(), allow_private=True)
    assert download.name == "data.csv"
    assert b"".join(download.chunks) == b"x" * 1_000_000


def test_an_empty_file_is_a_file(server: Server) -> None:
    server.answers["/empty"] = answer(body=b"")
    assert fetch(server.url("/empty")) == b""


def test_the_server_sees_the_host_by_its_name_and_the_whole_query(server: Server) -> None:
    server.answers["/a"] = answer()
    fetch(server.url("/a?b=c%20d", host="localhost"))
    (request,) = server.requests
    assert request.path == "/a?b=c%20d"
    assert request.headers["Host"] == f"localhost:{server.server_port}"
    assert "Cookie" not in request.headers


def test_proxies_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server.answers["/a"] = answer()
    assert fetch(server.url("/a")) == b"content"


NAMES = [
    ("/a/b.txt", None, "b.txt"),
    ("/a%20b.txt", None, "a b.txt"),
    ("/%E6%95%B0.csv", None, "数.csv"),
    ("/folder/", None, "127.0.0.1"),
    ("/..%2F..%2Fetc%2Fpasswd", None, "passwd"),
    ("/x", "inline", "x"),
    ("/x", "attachment; filename=plain.txt", "plain.txt"),
    ("/x", 'attachment; filename="quoted name.txt"; size=3', "quoted name.txt"),
    ("/x", "attachment; FileName=up.txt", "up.txt"),
    ("/x", "attachment; filename*=UTF-8''na%C3%AFve.txt", "naïve.txt"),
    ("/x", "attachment; filename*=utf-8'en'na%C3%AFve.txt", "naïve.txt"),
    ("/x", "attachment; filename=\"old.txt\"; filename*=UTF-8''new.txt", "new.txt"),
    ("/x", 'attachment; filename="../../etc/cron.d/evil"', "evil"),
    ("/x", "attachment; filename*=UTF-8''..%2F..%2F.bashrc", "bashrc"),
    ("/x", 'attachment; filename="..\\..\\evil.exe"', "evil.exe"),
    ("/x", "attachment; filename*=UTF-8''a%00b%0A.txt", "a_b_.txt"),
    ("/x", 'attachment; filename=""', "x"),
]


@pytest.mark.parametrize(("path", "disposition", "name"), NAMES, ids=lambda part: str(part)[:40])
def test_the_name_is_the_servers_made_harmless(server: Server, path: str, disposition: str | None, name: str) -> None:
    server.answers[path] = answer(**({"Content_Disposition": disposition} if disposition else {}))
    download = open_url(server.url(path), Limits(), allow_private=True)
    assert b"".join(download.chunks) == b"content"
    assert safe_name(download.name) == name


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(server: Server, status: int) -> None:
    server.answers["/a"] = answer(status, Location="b/final.txt")
    server.answers["/b/final.txt"] = answer()
    download = open_url(server.url("/a"), Limits(), allow_private=True)
    assert (download.name, b"".join(download.chunks)) == ("final.txt", b"content")


def test_redirects_are_followed_up_to_the_limit(server: Server) -> None:
    server.answers["/0"] = answer()
    for hop in range(1, 7):
        server.answers[f"/{hop}"] = answer(302, Location=server.url(f"/{hop - 1}"))
    assert fetch(server.url("/5")) == b"content"
    with pytest.raises(FileRejected, match="more than 5 redirects"):
        fetch(server.url("/6"))


@pytest.mark.parametrize("headers", [{"Location": "/loop"}, {}], ids=["to itself", "to nowhere"])
def test_a_redirect_loop_ends(server: Server, headers: dict[str, str]) -> None:
    server.answers["/loop"] = answer(302, **headers)
    with pytest.raises(FileRejected, match="more than 5 redirects"):
        fetch(server.url("/loop"))
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("file:///etc/passwd", "only http and https"),
        ("ftp://127.0.0.1/x", "only http and https"),
        ("http://user:pw@127.0.0.1/", "credentials"),
        ("http://127.0.0.1:99999/", "malformed"),
        ("http://[", "malformed"),
    ],
)
def test_a_redirect_is_checked_like_a_first_url(server: Server, location: str, reason: str) -> None:
    server.answers["/a"] = answer(302, Location=location)
    with pytest.raises(FileRejected, match=reason):
        fetch(server.url("/a"))


@pytest.mark.parametrize("status", [201, 204, 206, 304, 401, 403, 404, 410, 429, 500, 503])
def test_any_other_status_is_refused_without_repeating_the_query(server: Server, status: int) -> None:
    server.answers["/private"] = answer(status, body=b"")
    with pytest.raises(FileRejected) as refused:
        fetch(server.url("/private?token=secret"))
    assert str(refused.value) == f"127.0.0.1 answered with status {status}"


@pytest.mark.parametrize(
    "first",
    [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "],
    ids=["body", "headers"],
)
def test_a_server_that_drips_is_hung_up_on(server: Server, first: bytes) -> None:
    server.answers["/slow"] = drip(first)
    with pytest.raises(FileRejected, match=r"too long|took longer|cannot be reached|broke off"):
        fetch(server.url("/slow"), Limits(download_timeout=0.3))
    assert not server.sent_all.is_set()


def test_a_server_that_says_nothing_is_hung_up_on(server: Server) -> None:
    done = threading.Event()
    server.answers["/silent"] = lambda request: done.wait(10) and None
    with pytest.raises(FileRejected, match=r"^127\.0\.0\.1 "):
        fetch(server.url("/silent"), Limits(download_timeout=0.2))
    done.set()


def test_redirects_share_one_time_limit(server: Server) -> None:
    def slow_hop(request: BaseHTTPRequestHandler) -> None:
        threading.Event().wait(0.1)
        answer(302, Location="/hop")(request)

    server.answers["/hop"] = slow_hop
    with pytest.raises(FileRejected, match=r"too long|took longer|cannot be reached"):
        fetch(server.url("/hop"), Limits(download_timeout=0.35))


def broken_body(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")


def broken_chunks(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n")


@pytest.mark.parametrize("give", [broken_body, broken_chunks])
def test_a_broken_off_answer_is_no_file(server: Server, give: Answer) -> None:
    server.answers["/broken"] = give
    with pytest.raises(FileRejected, match=r"127\.0\.0\.1 broke off"):
        fetch(server.url("/broken"))


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.9\r\n"], ids=["nothing", "SSH"])
def test_what_is_no_http_is_refused(server: Server, words: bytes) -> None:
    server.answers["/"] = lambda request: request.wfile.write(words) and None
    with pytest.raises(FileRejected, match=r"127\.0\.0\.1 cannot be reached"):
        fetch(server.url("/"))


def test_https_is_not_spoken_with_a_server_that_does_not(server: Server) -> None:
    with pytest.raises(FileRejected, match=r"127\.0\.0\.1 cannot be reached"):
        fetch(server.url("/").replace("http:", "https:"))


def test_a_port_where_nobody_listens_is_told(server: Server) -> None:
    url = server.url("/")
    server.server_close()
    with pytest.raises(FileRejected, match=r"127\.0\.0\.1 cannot be reached"):
        fetch(url)


# -- into a work_dir --------------------------------------------------------------------------------------------------


def workspace(folder: Path, allow_private_urls: bool = True, **limits: int) -> Workspace:
    nobody = Guest(container_ids=(10001, 10001), host_ids=(10001, 10001))
    return Workspace(folder, nobody, Limits(**limits), allow_private_urls)


def test_a_url_is_staged_once(server: Server, tmp_path: Path) -> None:
    server.answers["/a.csv"] = answer()
    work = workspace(tmp_path)
    shown, url = "http://127.0.0.1/a.csv", server.url("/a.csv?token=secret")
    assert work.stage([url, url]) == (StagedFile(shown, "a.csv"), StagedFile(shown, "a.csv"))
    assert (tmp_path / "a.csv").read_bytes() == b"content"
    assert len(server.requests) == 1


@pytest.mark.parametrize("headers", [{}, {"Content_Length": "10000000"}], ids=["true length", "claimed length"])
def test_too_large_a_download_leaves_nothing(server: Server, tmp_path: Path, headers: dict[str, str]) -> None:
    server.answers["/big"] = answer(body=b"x" * 2000, **headers)
    (staged,) = workspace(tmp_path, max_file_bytes=1000).stage([server.url("/big")])
    assert (staged.name, list(tmp_path.iterdir())) == (None, [])


def test_a_small_answer_that_unpacks_to_a_large_one_is_cut_off(server: Server, tmp_path: Path) -> None:
    packed = gzip.compress(bytes(50_000_000))
    server.answers["/bomb"] = answer(body=packed, Content_Encoding="gzip")
    (staged,) = workspace(tmp_path, max_file_bytes=1_000_000).stage([server.url("/bomb")])
    kept = [file.stat().st_size for file in tmp_path.iterdir()]
    assert (staged.name, kept) in ((None, []), ("bomb", [len(packed)]))


def test_a_download_that_breaks_off_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.answers["/broken"] = broken_body
    (staged,) = workspace(tmp_path).stage([server.url("/broken")])
    assert "broke off" in staged.error
    assert list(tmp_path.iterdir()) == []


def test_private_addresses_need_the_owners_word(server: Server, tmp_path: Path) -> None:
    (staged,) = workspace(tmp_path, allow_private_urls=False).stage([server.url("/a?token=" + quote("secret"))])
    assert staged.source == "http://127.0.0.1/a"
    assert "allow_private_urls" in staged.error
    assert server.requests == []
