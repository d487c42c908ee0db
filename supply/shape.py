"""Measures the shape of the code: `python -m supply.shape [--trace]` prints each measure beside its goal.

`--trace` also counts the files of the package that one call enters. It needs a Docker engine and the sandbox's image.
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
import tempfile
import threading
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.testclient import TestClient

from agent_tools import CodeInterpreter, Sandbox
from agent_tools.code_mode import Toolset
from agent_tools.gateway.app import create_app
from agent_tools.gateway.config import GatewayConfig
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agent_tools"
GOALS = {
    "product lines": 60_000,
    "product files": 400,
    "files under 40 lines": 25,
    "public class names used more than once": 8,
    "import contracts": 16,
    "lines of import contracts": 120,
    "test lines": 67_000,
    "files entered by a warm call": 26,
    "files entered by a first call": 60,
    "files entered by a call of a host function": 36,
    "files entered by the second response of a gateway": 90,
}


def sources(folder: Path) -> dict[Path, str]:
    """Return the text of every Python file below a folder."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def lines(text: str) -> int:
    """Return the number of lines of a text."""
    return len(text.splitlines())


def repeated_classes(product: dict[Path, str]) -> dict[str, int]:
    """Return the public class names that several files define, with how many do."""
    found: dict[str, int] = defaultdict(int)
    for text in product.values():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name] += 1
    return {name: count for name, count in found.items() if count > 1}


def comments_per_100_lines(product: dict[Path, str]) -> float:
    """Return the comments per 100 lines of code; a comment of several lines counts each of them."""
    comments = code = 0
    for path in product:
        with path.open("rb") as file:
            tokens = list(tokenize.tokenize(file.readline))
        comments += sum(token.type == tokenize.COMMENT for token in tokens)
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER)
        code += len({token.start[0] for token in tokens if token.type not in skipped})
    return 100 * comments / code


def contracts() -> tuple[int, int]:
    """Return the number of import contracts, and the lines they take."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    number = sum(section.startswith("importlinter:contract:") for section in parser.sections())
    return number, lines((ROOT / ".importlinter").read_text())


@contextmanager
def entered() -> Iterator[set[str]]:
    """Collect the files of the package whose functions are called in this thread and in threads started inside."""
    files: set[str] = set()

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.add(frame.f_code.co_filename)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def traced() -> dict[str, int]:
    """Return how many files one call enters: the first one of a tool, a warm one, and one of a host function."""
    found: dict[str, int] = {}

    def count(name: str, call: Callable[[], object]) -> None:
        with entered() as files:
            call()
        found[f"files entered by a {name}"] = len(files)

    with CodeInterpreter(work_dir="fresh") as tool:
        count("first call", lambda: tool.call("print(1)"))
        tool.call("print(2)")
        count("warm call", lambda: tool.call("print(3)"))
    with Sandbox(hostcalls=Toolset([double])) as sandbox:
        sandbox.run_code("double(1)")
        count("call of a host function", lambda: sandbox.run_code("double(2)"))
    found["files entered by the second response of a gateway"] = len(of_a_response())
    return found


def of_a_response() -> set[str]:
    """Return the files that a gateway enters for a response with code that goes on from another one."""
    calls = [ScriptedReply(calls=[ScriptedCall("python", {"code": f"print({number})"})]) for number in range(2)]
    body: dict[str, Any] = {"model": "m", "input": "Go.", "stream": True}
    body["tools"] = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedServer({"m": [calls[0], "Done.", calls[1], "Done."]}) as upstream,
        entered() as files,  # from the start: threads that run already are not followed
    ):
        config = GatewayConfig(upstream=upstream.base_url, data_dir=Path(folder), pool=0)
        with TestClient(create_app(config, shared_runtime()), "http://127.0.0.1") as client:
            id_ = re.findall('"id":"(resp_[^"]+)"', client.post("/v1/responses", json=body).text)[0]
            files.clear()
            client.post("/v1/responses", json={**body, "previous_response_id": id_}).raise_for_status()
            return {name for name in files if "/testing/" not in name}


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def main() -> None:
    """Print the table."""
    product, tests = sources(PACKAGE), sources(ROOT / "tests")
    number, length = contracts()
    measures: dict[str, float] = {
        "product lines": sum(map(lines, product.values())),
        "product files": len(product),
        "files under 40 lines": sum(lines(text) < 40 for path, text in product.items() if path.name != "__init__.py"),
        "public class names used more than once": len(repeated_classes(product)),
        "import contracts": number,
        "lines of import contracts": length,
        "test lines": sum(map(lines, tests.values())),
    }
    if "--trace" in sys.argv[1:]:
        measures |= traced()
    for name, value in measures.items():
        print(f"{name:42} {value:>8,}   goal: at most {GOALS[name]:,}")
    print(f"{'comments per 100 lines of code':42} {comments_per_100_lines(product):>8.1f}   goal: at least 4")


if __name__ == "__main__":
    main()
