"""The audit of what is pinned, with a service of our own that speaks OSV's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from supply import audit

HASH = "0" * 64
NOWHERE = "http://127.0.0.1:9/v1/query"


class Advisories(BaseHTTPRequestHandler):
    """Knows one vulnerability, of tornado before 6.6."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [asked_of(asked["package"]["name"])] if asked["version"] == "6.5" else []
        body = json.dumps({"vulns": found} if found else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def asked_of(name: str) -> dict[str, object]:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "6.6"}]}]
    return {"id": "PYSEC-1-1", "affected": [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": ranges}]}


@pytest.fixture
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Advisories) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.lock"
    path.write_text(f"tornado==6.5 \\\n    --hash=sha256:{HASH}\n    # via jupyter-client\n")
    return path


def test_a_known_vulnerability_is_named_with_its_fix_and_ends_in_1(
    service: str, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(["--osv-url", service, str(lock)]) == 1
    assert "tornado 6.5: PYSEC-1-1 (fixed in 6.6)" in capsys.readouterr().out


def test_an_ignored_advisory_and_a_clean_lock_end_in_0(service: str, lock: Path) -> None:
    assert audit.main(["--osv-url", service, "--ignore", "PYSEC-1-1", str(lock)]) == 0


def test_what_no_service_answered_for_is_not_checked_and_ends_in_3(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(["--osv-url", NOWHERE, str(lock)]) == 3
    printed = capsys.readouterr().out
    assert "1 NOT CHECKED" in printed
    assert "osv was not reached" in printed


def test_the_worst_outcome_of_the_locks_counts() -> None:
    assert audit.worst([0, 3, 1, 3]) == 1
    assert audit.worst([0, 3]) == 3


def test_a_package_that_a_service_skipped_is_not_taken_as_clean() -> None:
    report = {"dependencies": [{"name": "a", "skip_reason": "not found"}, {"name": "b", "version": "1", "vulns": []}]}
    answer = audit.answer_of("pypi", report)
    assert (answer.checked, answer.unchecked, answer.reason) == (frozenset("b"), frozenset("a"), "not found")


@pytest.mark.parametrize("path", audit.LOCKS, ids=lambda path: path.name)
def test_every_lock_pins_with_hashes(path: Path) -> None:
    names = audit.pinned(path)
    assert names
    entries = path.read_text().replace("\\\n", "").splitlines()
    assert all("--hash=sha256:" in entry for entry in entries if entry and not entry.lstrip().startswith("#"))
