"""The manifests of deploy/kubernetes, made from its chart: `python -m supply.kubernetes`, or --check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agent_tools.engines.kubernetes.seccomp import Profiles
from agent_tools.engines.package_data import shipped

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
CHART = FOLDER / "chart"
MANIFESTS = FOLDER / "agent-tools.yaml"
NAMESPACE = "agent-tools"
HEAD = "# Made by `python -m supply.kubernetes` from chart/ and its default values: see docs/kubernetes.md.\n"


def profiles() -> dict[str, str]:
    """Return the texts of the seccomp profiles by the names of their files."""
    both = Profiles.of(shipped("docker/seccomp.json").read_text())
    return {each.file_name: each.text for each in (both.sealed, both.loopback)}


def rendered(*options: str) -> str:
    """Return the manifests as helm renders them."""
    command = [
        str(ROOT / "scripts" / "tries" / "helm"),
        "template",
        "agent-tools",
        str(CHART),
        "--namespace",
        NAMESPACE,
        *options,
    ]
    done: str = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return done


def main() -> None:
    """Write the profiles and the manifests; with --check, fail where they are not current."""
    wanted = {CHART / "profiles" / name: text for name, text in profiles().items()}
    if "--check" not in sys.argv:
        for path in (CHART / "profiles").glob("*.json"):
            path.unlink()
        for path, text in wanted.items():
            path.write_text(text)
    wanted[MANIFESTS] = HEAD + rendered()
    if "--check" in sys.argv:
        stale = [str(path) for path, text in wanted.items() if not path.exists() or path.read_text() != text]
        sys.exit(f"not current: {', '.join(stale)}" if stale else 0)
    MANIFESTS.write_text(wanted[MANIFESTS])


if __name__ == "__main__":
    main()
