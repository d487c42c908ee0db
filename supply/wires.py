"""Tries the clients of other sandboxes with the gateway's wires, each as its makers ship it: `scripts/try wires`."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from supply.programs import PICTURES, ROOT, VENVS, free_port, made, process, wait

CLIENTS = ROOT / "tests" / "wire_clients"
TOOL_SERVER = "vllm/entrypoints/mcp/tool_server.py"
VERL = "verl/utils/reward_score/sandbox_fusion/"
NODE = ROOT / ".venv" / "bin" / "node"
WIRES = ("vllm", "sandboxfusion", "librechat", "e2b")


def main() -> int:
    """Try all; return the number that failed."""
    python, _ = made("wires", ["sandbox-fusion", "openai-harmony", "mcp"])
    e2b, _ = made("e2b", ["e2b", "e2b-code-interpreter"])
    frameworks, _ = made("e2b-frameworks", ["smolagents", "litellm", "e2b-code-interpreter"])
    vllm = unpacked("vllm", [TOOL_SERVER]) / TOOL_SERVER
    verl = unpacked("verl", [f"{VERL}__init__.py", f"{VERL}utils.py"]) / VERL
    librechat = node_folder(
        "librechat", "@opentelemetry/api@^1.10.0", "@librechat/agents"
    )  # which its own needs conflict about
    computesdk = node_folder("computesdk", "computesdk", "@computesdk/e2b")
    e2b_node = node_folder("e2b-node", "e2b", "@e2b/code-interpreter")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tools-try-")))
        url, key = stack.enter_context(gateway(folder))
        given = {"GATEWAY": url, "GATEWAY_KEY": key, "TOOL_SERVER": str(vllm), "VERL": str(verl)}
        given["LIBRECHAT_CODE_BASEURL"] = f"{url}/librechat"
        runs = [
            [str(python), str(CLIENTS / "sandboxfusion_client.py")],
            [str(python), str(CLIENTS / "vllm_client.py")],
            [str(e2b), str(CLIENTS / "e2b_client.py")],
            [str(frameworks), str(CLIENTS / "e2b_frameworks.py")],
            [str(NODE), str(shutil.copy(CLIENTS / "computesdk.mjs", computesdk))],
            [str(NODE), str(shutil.copy(CLIENTS / "librechat.mjs", librechat))],  # where its imports are
            [str(NODE), str(shutil.copy(CLIENTS / "e2b.mjs", e2b_node))],
        ]
        failed = [run for run in runs if subprocess.run(run, env={**os.environ, **given}, timeout=600).returncode]
    return len(failed)


def node_folder(name: str, *packages: str) -> Path:
    """Return a folder with packages of npm, at their newest versions when it was made."""
    folder = VENVS / name
    folder.mkdir(parents=True, exist_ok=True)
    npm(folder, *packages)
    return folder


def npm(folder: Path, *packages: str) -> None:
    """Install packages of npm into a folder, unless the last of them is there; scripts of theirs do not run."""
    if not (folder / "node_modules" / packages[-1]).is_dir():
        cli = NODE.resolve().parent / "../lib/node_modules/npm/bin/npm-cli.js"
        command = [str(NODE), str(cli)] if cli.exists() else ["npm"]
        install = [*command, "install", "--silent", "--no-audit", "--ignore-scripts", *packages]
        subprocess.run(install, cwd=folder, check=True, timeout=900)


def unpacked(package: str, files: list[str]) -> Path:
    """Return a folder with files out of the newest wheel of a package, without installing the rest."""
    folder = VENVS / package
    if not list(folder.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package]
        subprocess.run(pip, check=True, timeout=1_800)
    wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    print(f"{package}: {wheel.name.split('-')[1]}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, files)
    return folder


@contextlib.contextmanager
def gateway(folder: Path, settings: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Have a gateway with all wires; give its URL and a key."""
    agent_tools, data, port = str(ROOT / ".venv" / "bin" / "agent-tools"), str(folder / "data"), free_port()
    key = f"e2b_{secrets.token_hex(20)}"  # the form that some of E2B's SDKs demand
    serve = [agent_tools, "serve", "--port", str(port), "--upstream", "http://127.0.0.1:9/v1", "--data-dir", data]
    wires = [part for name in WIRES for part in ("--wire", name)]
    with process([*serve, *wires, "--api-key", key, *settings], {}, folder, PICTURES / "wires-gateway.log") as running:
        wait(f"http://127.0.0.1:{port}/health", 120, running)
        yield f"http://127.0.0.1:{port}", key


if __name__ == "__main__":
    sys.exit(main())
