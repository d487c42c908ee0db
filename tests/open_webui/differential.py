"""The same requests to Open WebUI's own terminal server and to ours: status, type and JSON beside each other."""

from __future__ import annotations

import io
import json
import sys
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from typing import Any

SERVERS = json.loads(sys.argv[1])
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "source": source, "outputs": [], "execution_count": None, "metadata": {}, "id": f"c{n}"}
        for n, source in enumerate(["a=1\nprint(a)", ["a+1"], "1/0"])
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "P", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
PREPARE = (
    "head -c 3000 /dev/zero > z.bin; printf '\\211PNG\\r\\n\\032\\n' > p.png; ln -s w/x.py link; ln -s nowhere dangling"
)
Step = tuple[str, str, str, Any]
FILES: tuple[Step, ...] = (
    ("health", "GET", "/health", None),
    ("config", "GET", "/api/config", None),
    ("cwd", "GET", "/files/cwd", None),
    ("unknown route", "GET", "/nope", None),
    ("ports", "GET", "/ports", None),
    ("skills", "GET", "/skills", None),
    ("skill missing", "GET", "/skills/read?name=x", None),
    ("upload", "POST", "/files/upload?directory={home}/sub/", ("a b.txt", b"one\ntwo needle\nthree\n")),
    ("upload traversal name", "POST", "/files/upload?directory={home}", ("../../evil.txt", b"x")),
    ("upload unicode name", "POST", "/files/upload?directory={home}", ("naïve ☃.txt", b"x")),
    ("write", "POST", "/files/write", {"path": "w/x.py", "content": "def f():\n    return 'needle'\n"}),
    ("write unicode", "POST", "/files/write", {"path": "{home}/u.md", "content": "héllo\r\n☃\n"}),
    ("write missing", "POST", "/files/write", {"path": "x"}),
    ("write onto folder", "POST", "/files/write", {"path": "w", "content": "x"}),
    ("list", "GET", "/files/list?directory={home}", None),
    ("list relative", "GET", "/files/list?directory=w", None),
    ("list default", "GET", "/files/list", None),
    ("list missing", "GET", "/files/list?directory=nope", None),
    ("list of a file", "GET", "/files/list?directory=u.md", None),
    ("read", "GET", "/files/read?path=w/x.py", None),
    ("read crlf", "GET", "/files/read?path=u.md", None),
    ("read range", "GET", "/files/read?path=w/x.py&start_line=2&end_line=2", None),
    ("read null range", "GET", "/files/read?path=w/x.py&start_line=null&end_line=null", None),
    ("read bad range", "GET", "/files/read?path=w/x.py&start_line=0", None),
    ("read missing", "GET", "/files/read?path=nope", None),
    ("read folder", "GET", "/files/read?path=w", None),
    ("read no path", "GET", "/files/read", None),
    ("prepare", "POST", "/execute?wait=20", {"command": PREPARE}),
    ("read binary", "GET", "/files/read?path=z.bin", None),
    ("read png", "GET", "/files/read?path=p.png", None),
    ("view", "GET", "/files/view?path={home}/w/x.py", None),
    ("view binary", "GET", "/files/view?path={home}/z.bin", None),
    ("view missing", "GET", "/files/view?path={home}/nope", None),
    ("view folder", "GET", "/files/view?path={home}/w", None),
    ("serve", "GET", "/files/serve{home}/w/x.py", None),
    ("display", "GET", "/files/display?path=w/x.py", None),
    ("display missing", "GET", "/files/display?path=nope", None),
    ("list links", "GET", "/files/list", None),
    (
        "replace",
        "POST",
        "/files/replace",
        {"path": "w/x.py", "replacements": [{"target": "needle", "replacement": "nail"}]},
    ),
    (
        "replace ambiguous",
        "POST",
        "/files/replace",
        {"path": "w/x.py", "replacements": [{"target": "e", "replacement": "E"}]},
    ),
    (
        "replace absent",
        "POST",
        "/files/replace",
        {"path": "w/x.py", "replacements": [{"target": "zz", "replacement": "E"}]},
    ),
    ("replace no file", "POST", "/files/replace", {"path": "nope", "replacements": []}),
    ("grep", "GET", "/files/grep?query=needle", None),
    ("grep literal", "GET", "/files/grep?query=f(&regex=false", None),
    ("grep bad regex", "GET", "/files/grep?query=f(", None),
    ("grep include", "GET", "/files/grep?query=ret&include=*.py&include=*.txt&case_insensitive=true", None),
    ("grep names", "GET", "/files/grep?query=e&match_per_line=false", None),
    ("grep capped", "GET", "/files/grep?query=ret&max_results=1", None),
    ("grep missing path", "GET", "/files/grep?query=e&path=nope", None),
    ("glob", "GET", "/files/glob?pattern=*.py", None),
    ("glob folders", "GET", "/files/glob?pattern=*&type=directory", None),
    ("glob exclude", "GET", "/files/glob?pattern=*.py&exclude=w&type=file", None),
    ("glob bad type", "GET", "/files/glob?pattern=*&type=zzz", None),
    ("search", "GET", "/files/search?query=x&limit=20&type=any&show_hidden=false&path=.", None),
    ("matches", "GET", "/files/matches?query=needle&path={home}&show_hidden=false&offset=0", None),
    ("matches blank", "GET", "/files/matches?query=%20", None),
    (
        "compare",
        "POST",
        "/files/compare",
        {"original": "{home}/w/x.py", "revised": "{home}/u.md", "ignore_whitespace": False},
    ),
    (
        "compare missing",
        "POST",
        "/files/compare",
        {"original": "{home}/nope", "revised": "{home}/u.md", "ignore_whitespace": False},
    ),
    ("mkdir", "POST", "/files/mkdir", {"path": "{home}/new/deep"}),
    ("move", "POST", "/files/move", {"source": "{home}/u.md", "destination": "{home}/new/v.md"}),
    ("move missing", "POST", "/files/move", {"source": "{home}/u.md", "destination": "{home}/new/q.md"}),
    ("move onto", "POST", "/files/move", {"source": "{home}/z.bin", "destination": "{home}/new/v.md"}),
    ("move no parent", "POST", "/files/move", {"source": "{home}/z.bin", "destination": "{home}/no/v.md"}),
    ("archive", "POST", "/files/archive", {"paths": ["{home}/w", "{home}/new/v.md"]}),
    ("archive one", "POST", "/files/archive", {"paths": ["{home}/w"]}),
    ("archive none", "POST", "/files/archive", {"paths": []}),
    ("archive missing", "POST", "/files/archive", {"paths": ["{home}/nope"]}),
    ("delete file", "DELETE", "/files/delete?path={home}/z.bin", None),
    ("delete folder", "DELETE", "/files/delete?path={home}/new", None),
    ("delete missing", "DELETE", "/files/delete?path={home}/new", None),
    ("set cwd", "POST", "/files/cwd", {"path": "{home}/w"}),
    ("set cwd missing", "POST", "/files/cwd", {"path": "{home}/nope"}),
    ("cwd now", "GET", "/files/cwd", None),
    ("execute in cwd", "POST", "/execute?wait=20", {"command": "pwd"}),
    ("execute env", "POST", "/execute?wait=20", {"command": "echo $A; pwd", "env": {"A": "b"}, "cwd": "{home}"}),
    ("execute exit", "POST", "/execute?wait=20", {"command": "exit 3"}),
    ("execute nothing", "POST", "/execute", {}),
    ("execute unknown", "POST", "/execute?wait=20", {"command": "nosuchprogram"}),
    ("process missing", "GET", "/execute/nope/status", None),
    ("make notebook", "POST", "/files/write", {"path": "{home}/n.ipynb", "content": json.dumps(NOTEBOOK)}),
    ("notebook missing", "POST", "/notebooks", {"path": "{home}/nope.ipynb"}),
    ("no user shell", "GET", "/api/terminals/user/output", None),
)
PROCESS: tuple[Step, ...] = (
    ("later", "POST", "/execute?wait=0.2", {"command": "read line; echo got $line; sleep 60"}),
    ("input", "POST", "/execute/{id}/input", {"input": "hello\n"}),
    ("status", "GET", "/execute/{id}/status", None),
    ("kill", "DELETE", "/execute/{id}", None),
    ("input after", "POST", "/execute/{id}/input", {"input": "hello\n"}),
)
BOOK: tuple[Step, ...] = (
    ("notebook", "POST", "/notebooks", {"path": "{home}/n.ipynb"}),
    ("cell 0", "POST", "/notebooks/{id}/execute", {"cell_index": 0}),
    ("cell 1", "POST", "/notebooks/{id}/execute", {"cell_index": 1, "source": "a+41"}),
    ("cell error", "POST", "/notebooks/{id}/execute", {"cell_index": 2}),
    ("cell range", "POST", "/notebooks/{id}/execute", {"cell_index": 9}),
    ("notebook status", "GET", "/notebooks/{id}", None),
    ("notebook closed", "DELETE", "/notebooks/{id}", None),
    ("notebook gone", "GET", "/notebooks/{id}", None),
)
SHELL: tuple[Step, ...] = (
    ("terminal", "POST", "/api/terminals", {}),
    ("terminal shown", "GET", "/api/terminals/{id}", None),
    ("terminals", "GET", "/api/terminals", None),
    ("terminal ended", "DELETE", "/api/terminals/{id}", None),
    ("terminal gone", "GET", "/api/terminals/{id}", None),
)
MEANT = {
    "write onto folder": "the sentence names no path of the host",
    "list links": "a dangling link is seen, so that it can be deleted",
    "grep names": "files come in the order of their names",
    "glob bad type": "pydantic's own word for the error",
    "archive missing": "the sentence names no path",
    "execute unknown": "the shell is bash",
    "input": "pieces of output are cut as they come",
    "input after": "the sentence is that of all wires",
    "cell error": "the error is the code's own, with the number of its cell",
}
VOLATILE = {"id", "modified", "created_at", "pid", "log_path", "next_offset"}
LEFT_OUT = {"input", "ctx", "msg", "url"}  # of an error in a request


@dataclass(frozen=True)
class Server:
    """A server of the two."""

    url: str
    key: str
    home: str


REAL = Server(SERVERS["terminal"], SERVERS["real_key"], SERVERS["real_home"])
OURS = Server(f"{SERVERS['gateway']}/terminal", SERVERS["key"], "/workspace")


def answered(server: Server, step: Step, id_: str) -> tuple[int, str, Any]:
    """Return the status, the type and the value of an answer."""
    _, method, path, body = step
    path = path.replace("{home}", server.home).replace("{id}", id_)
    path = urllib.request.quote(path, safe="/?&=%*().")  # type: ignore[attr-defined]
    kind, data = "application/json", None
    if isinstance(body, tuple):
        kind = "multipart/form-data; boundary=edge"
        head = f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{body[0]}"\r\n\r\n'
        data = head.encode() + body[1] + b"\r\n--edge--\r\n"
    elif body is not None:
        data = json.dumps(body).replace("{home}", server.home).encode()
    sent = {"authorization": f"Bearer {server.key}", "x-user-id": "differential", "x-session-id": "c1"}
    request = urllib.request.Request(server.url + path, data, {**sent, "content-type": kind}, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as exc:
        answer = exc  # type: ignore[assignment]
    text = answer.read()
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return answer.status, answer.headers.get("content-type", "").split(";")[0], value


def plain(value: Any, home: str) -> Any:
    """Return a value without what differs from run to run."""
    match value:
        case {"output": [*pieces]}:
            text = "".join(each["data"] for each in pieces)
            return plain({**value, "output": text}, home)
        case dict():
            left = {name: each for name, each in value.items() if name not in LEFT_OUT}
            return {name: "*" if name in VOLATILE else plain(each, home) for name, each in left.items()}
        case list():
            return [plain(each, home) for each in value]
        case str():
            return value.replace(home, "{home}")
        case bytes():
            try:
                with zipfile.ZipFile(io.BytesIO(value)) as archive:
                    return {name: archive.read(name).decode() for name in sorted(archive.namelist())}
            except zipfile.BadZipFile:
                return len(value)
    return value


def main() -> int:
    """Compare; return the number of differences that are not meant."""
    same, unexpected, meant = 0, 0, 0
    for steps in (FILES, PROCESS, BOOK, SHELL):
        ids = ["", ""]
        for step in steps:
            found = [answered(server, step, id_) for server, id_ in zip((REAL, OURS), ids)]
            if step is steps[0] and steps is not FILES:
                ids = [value["id"] for _, _, value in found]
            real, ours = ((*each[:2], plain(each[2], server.home)) for each, server in zip(found, (REAL, OURS)))
            if step[0] == "input":
                time.sleep(2)
            if real == ours:
                same += 1
                continue
            reason = MEANT.get(step[0])
            meant, unexpected = meant + bool(reason), unexpected + (not reason)
            word = f"meant, {reason}" if reason else "DIFFERS"
            print(
                f"{step[0]}: {word}\n   theirs {json.dumps(real)[:600]}\n   ours   {json.dumps(ours)[:600]}", flush=True
            )
    print(f"{same} the same, {meant} differ as is meant, {unexpected} otherwise", flush=True)
    return unexpected


if __name__ == "__main__":
    sys.exit(main())
