"""rLLM: the example, by its `Sandbox` protocol. It is in no registry: `--with` a clone, or PYTHONPATH, brings it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rllm.sandbox.protocol import Sandbox as Protocol
from rllm.sandbox.protocol import _safe_exec

from tests.integrations.scenario import load_example


def test_the_example_runs(cfg: dict[str, Any], tmp_path: Path) -> None:
    sandbox = load_example("rllm_sandbox").AgentToolsSandbox(cfg)
    assert isinstance(sandbox, Protocol)
    (tmp_path / "tests" / "sub").mkdir(parents=True)
    (tmp_path / "tests" / "sub" / "test.sh").write_text("echo from the test; exit 4\n")
    try:
        sandbox.upload_dir(str(tmp_path / "tests"), "/tmp/tests")
        assert sandbox.exec("echo $((6 * 7)) > out.txt; cat out.txt", timeout=20) == "42\n"
        assert sandbox.exec("cat out.txt") == "42\n"
        with pytest.raises(RuntimeError, match="exit 4"):
            sandbox.exec("sh /tmp/tests/sub/test.sh")
        assert "exit 4" in _safe_exec(sandbox, "sh /tmp/tests/sub/test.sh")
        assert sandbox.exec("id -u") != "0\n"
        with pytest.raises(RuntimeError, match="one user"):
            sandbox.exec("id", user="root")
        assert sandbox.is_alive()
    finally:
        sandbox.close()
    assert not sandbox.is_alive()
