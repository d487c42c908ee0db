"""Tries whole programs of others with the gateway: `scripts/try openwebui`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

from agent_tools.wires.terminal import ROUTES

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venv" / "try"
PICTURES = ROOT / "tests" / "artefacts"
UV = ROOT / ".venv" / "bin" / "uv"
HEAVY = (
    *("accelerate", "azure-", "chromadb", "einops", "faster-whisper", "google-cloud-storage", "onnxruntime"),
    *("opencv", "opensearch", "pyarrow", "rapidocr", "sentence-transformers", "sentencepiece", "soundfile"),
    *("torch", "transformers"),
)
"""Requirements of Open WebUI for searching documents and for speech, which no terminal needs: 4 GB."""
FAKES = (
    *("accelerate", "azure", "chromadb", "cv2", "einops", "faster_whisper", "google.cloud", "onnxruntime"),
    *(
        "opensearchpy",
        "pyarrow",
        "qdrant_client",
        "rapidocr",
        "sentence_transformers",
        "sentencepiece",
        "soundfile",
        "torch",
    ),
    "transformers",
)
SITECUSTOMIZE = """
import importlib.abc, importlib.machinery, sys, types
FAKES = {fakes!r}

class Fake(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {{}}) if name[0].isupper() else (lambda *_, **__: None)
        setattr(self, name, made)
        return made

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == fake or name.startswith(fake + ".") for fake in FAKES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Fake(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.append(Finder())
"""


def main(arguments: list[str]) -> int:
    """Try the programs of these names; return the number that failed."""
    if arguments != ["openwebui"]:
        print("usage: scripts/try openwebui", file=sys.stderr)
        return 2
    return open_webui()


def open_webui() -> int:
    """Try Open WebUI and its terminal server."""
    install_open_webui()
    unknown = unknown_paths()
    for path in unknown:
        print(f"UNKNOWN: Open WebUI asks for {path}, which the wire does not have")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tools-try-")))
        found = stack.enter_context(started(folder))
        runs = [
            [sys.executable, "-m", "tests.open_webui.differential", json.dumps(found)],
            [sys.executable, "-m", "tests.open_webui.flow", json.dumps(found), str(PICTURES)],
        ]
        failed = [run for run in runs if subprocess.run(run, cwd=ROOT, timeout=900).returncode]
    return len(failed) + len(unknown)


def install_open_webui() -> None:
    """Install both at their newest versions, Open WebUI without what is heavy."""
    python, site = made("open-terminal", ["open-terminal"])
    python, site = made("open-webui", ["--no-deps", "open-webui"])
    own = PathDistribution(next(site.glob("open_webui-*.dist-info")))
    needed = [each for each in own.requires or () if "extra ==" not in each and not each.lower().startswith(HEAVY)]
    done = VENVS / "open-webui" / f"installed-{own.version}"
    if not done.exists():
        needed += ["qdrant-client", "typer"]  # which heavy ones bring else
        print(f"installing {len(needed)} packages for Open WebUI {own.version}: minutes", flush=True)
        subprocess.run([UV, "pip", "install", "-q", "--python", python, *needed], check=True, timeout=1_800)
        done.touch()
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE.format(fakes=FAKES))


def made(name: str, packages: list[str]) -> tuple[Path, Path]:
    """Make a venv with packages; return its python and the folder of its packages."""
    python = VENVS / name / "bin" / "python"
    if not python.exists():
        subprocess.run([UV, "venv", "-q", "--python", "3.11", VENVS / name], check=True, timeout=600)
    subprocess.run([UV, "pip", "install", "-q", "-U", "--python", python, *packages], check=True, timeout=1_800)
    return python, next((VENVS / name / "lib").glob("python*")) / "site-packages"


def unknown_paths() -> list[str]:
    """List the paths that Open WebUI's client asks a terminal server for, and that the wire does not have."""
    client = ""
    site = next((VENVS / "open-webui" / "lib").glob("python*")) / "site-packages" / "open_webui"
    for each in site.rglob("*.js.map"):
        text = each.read_text(errors="replace")
        if "apis/terminal/index.ts" in text:
            sources = json.loads(text)
            for name, source in zip(sources["sources"], sources.get("sourcesContent", [])):
                client = source if name.endswith("apis/terminal/index.ts") else client
    asked = set(re.findall(r"\$\{(?:base|baseUrl|url|root)[^}]*\}(/[a-z][\w/-]*)", client))
    if not asked:
        return ["(none was found: its client is another one now)"]
    known = ["/api/config", *(re.sub(r"\{.*", "", each.path).rstrip("/") for each in ROUTES.operations)]
    return sorted(path for path in asked if not any(path == each or path.startswith(f"{each}/") for each in known))


@contextlib.contextmanager
def started(folder: Path) -> Iterator[dict[str, str]]:
    """Have all servers: a scripted model, the gateway, the other terminal server and Open WebUI; give their URLs."""
    ports = {name: free_port() for name in ("model", "gateway", "terminal", "webui")}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    agent_tools, data = ROOT / ".venv" / "bin" / "agent-tools", str(folder / "data")
    key = output([str(agent_tools), "keys", "--data-dir", data, "add", "open-webui", "--for-users"])
    home, real_key = folder / "home", secrets.token_hex(8)
    home.mkdir()
    found = {**urls, "key": key, "real_key": real_key, "real_home": str(home), "log": str(folder / "model.log")}
    connection = {
        "id": "sealed",
        "name": "Sealed",
        "enabled": True,
        "url": f"{urls['gateway']}/terminal",
        "key": key,
        "auth_type": "bearer",
        "path": "/openapi.json",
        "server_type": "orchestrator",
        "policy_id": "team",
        "config": {
            "contexts": {"chat": {"context_id": "chat_id"}},
            "access_grants": [{"principal_type": "user", "principal_id": "*", "permission": "read"}],
        },
    }
    webui = {
        "DATA_DIR": str(folder / "webui"),
        "WEBUI_SECRET_KEY": secrets.token_hex(8),
        "FROM_INIT_PY": "true",
        "OPENAI_API_BASE_URL": f"{urls['model']}/v1",
        "OPENAI_API_KEY": "none",
        "ENABLE_OLLAMA_API": "false",
        "VECTOR_DB": "qdrant",
        "QDRANT_URI": "http://127.0.0.1:9",
        "RAG_EMBEDDING_ENGINE": "openai",
        "OFFLINE_MODE": "true",
        "BYPASS_MODEL_ACCESS_CONTROL": "true",
        "TERMINAL_SERVER_CONNECTIONS": json.dumps([connection]),
        "CORS_ALLOW_ORIGIN": urls["webui"],
    }
    serve = ["serve", "--wire", "terminal", "--port", str(ports["gateway"]), "--upstream", f"{urls['model']}/v1"]
    serve += ["--data-dir", data, "--set", "named_keys=true", "--set", "pool=1"]
    real = ["run", "--host", "127.0.0.1", "--port", str(ports["terminal"]), "--api-key", real_key]
    with contextlib.ExitStack() as stack:
        (folder / "webui").mkdir()
        programs: tuple[tuple[str, list[str], dict[str, str], Path], ...] = (
            ("model", [sys.executable, "-m", "tests.open_webui.model", str(ports["model"]), found["log"]], {}, ROOT),
            ("gateway", [str(agent_tools), *serve], {}, folder),
            (
                "terminal",
                [str(VENVS / "open-terminal/bin/open-terminal"), *real],
                {"HOME": str(home), "XDG_STATE_HOME": str(folder)},
                home,
            ),
            (
                "webui",
                [str(VENVS / "open-webui/bin/open-webui"), "serve", "--port", str(ports["webui"])],
                webui,
                folder,
            ),
        )
        for name, command, environment, cwd in programs:
            running = stack.enter_context(process(command, environment, cwd, PICTURES / f"openwebui-{name}.log"))
            wait(f"{urls[name]}/{'v1/models' if name == 'model' else 'health'}", 240, running)
        yield found


@contextlib.contextmanager
def process(command: list[str], environment: dict[str, str], cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a session of its own, until the end."""
    log.parent.mkdir(exist_ok=True)
    with open(log, "wb") as file:
        env = {**os.environ, **environment}
        running = subprocess.Popen(command, env=env, cwd=cwd, stdout=file, stderr=file, start_new_session=True)
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


def wait(url: str, seconds: float, running: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers.

    Raises:
        TimeoutError: it does not.
    """
    deadline = time.monotonic() + seconds
    while not answers(url):
        if running.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"{url} does not answer: its log is in {PICTURES}.")
        time.sleep(0.5)


def answers(url: str) -> bool:
    """Return whether a server answers."""
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310  (a server of this machine)
    except OSError:
        return False
    return True


def output(command: list[str]) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    assert shutil.which("docker")
    sys.exit(main(sys.argv[1:]))
