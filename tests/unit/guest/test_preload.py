"""What preloading leaves behind, in a Python of its own: the modules, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def python(tmp_path: Path, code: str, **environment: str) -> Any:
    """What a fresh Python prints, as JSON, that finds modules in `tmp_path`."""
    path = f"{tmp_path}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", f"from agent_tools.guest import preload\nimport json, os, sys\n{code}"],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_list_is_taken_out_of_the_environment(tmp_path: Path) -> None:
    code = "print(json.dumps([preload.names(), preload.VARIABLE in os.environ]))"
    assert python(tmp_path, code, AGENT_TOOLS_PRELOAD="a,b.c") == [["a", "b.c"], False]
    assert python(tmp_path, code) == [[], False]


def test_modules_are_imported_with_variables_that_are_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import os\nsaid = os.environ['JE_ARROW_MALLOC_CONF']")
    code = "preload.preload(['told'])\n"
    code += "print(json.dumps([sys.modules['told'].said, 'JE_ARROW_MALLOC_CONF' in os.environ]))"
    assert python(tmp_path, code) == ["background_thread:false", False]
    assert python(tmp_path, code, JE_ARROW_MALLOC_CONF="narenas:1") == ["narenas:1", True]


REFUSED = """
try:
    preload.preload(['starts'])
except RuntimeError as exc:
    print(json.dumps(str(exc)))
os._exit(0)
"""


def test_a_module_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()"
    )
    assert python(tmp_path, REFUSED.replace("os._exit", "sys.stdout.flush(); os._exit")) == (
        "starts starts a thread when it is imported, so it cannot be preloaded"
    )


def test_the_generator_that_a_fork_inherits_is_seeded_anew(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("from . import random")
    (tmp_path / "numpy" / "random.py").write_text("seeds = 0\ndef seed():\n    global seeds\n    seeds += 1")
    code = "preload.renew(); import numpy; preload.renew(); print(json.dumps(numpy.random.seeds))"
    assert python(tmp_path, code) == 1
