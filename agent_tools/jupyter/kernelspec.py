"""The kernelspec: it makes kernels in sandboxes known to Jupyter's programs.

One spec serves both kinds of clients: clients that know provisioners use ours, the others start `argv`.
Format: https://jupyter-client.readthedocs.io/en/stable/kernels.html#kernel-specs
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jupyter_client.kernelspec import KernelSpecManager

from agent_tools.errors import InvalidParams
from agent_tools.machine.own_command import OWN_COMMAND
from agent_tools.sandbox.options import Config, Options

NAME, TITLE = "agent-tools", "Python (sealed)"
PROVISIONER = "agent-tools"
WorkDir = Literal["cwd", "fresh"]
Outputs = Literal["all", "plain"]


@dataclass(frozen=True)
class KernelSpec:
    """A kernelspec: the options of its sandboxes, JSON values by name, and the folder they work in.

    With 'plain' outputs, content that a page would execute is left out: HTML, scripts, SVG and widgets.

    Raises:
        InvalidParams: an option is unknown, unusable, or would break the isolation.
    """

    options: Config = field(default_factory=dict)
    work_dir: WorkDir = "cwd"
    title: str = TITLE
    outputs: Outputs = "all"

    def __post_init__(self) -> None:
        Options.read(sandbox_config(self.options, self.work_dir, "/tmp/any"))
        try:
            json.dumps(self.options)
        except TypeError as exc:
            raise InvalidParams(f"An option of a kernelspec is no JSON value ({exc}): give it as in a file.") from exc
        is_plain(self.outputs)

    def content(self) -> dict[str, Any]:
        """Return the content of kernel.json."""
        given = [word for name, value in self.options.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        launcher = [*OWN_COMMAND, "jupyter", "kernel", "-f", "{connection_file}"]
        config: dict[str, object] = {"work_dir": self.work_dir, "outputs": self.outputs}
        if self.options:  # else those of the configuration of the process that has the kernel apply
            config["options"] = self.options
        return {
            "argv": [*launcher, "--work-dir", self.work_dir, "--outputs", self.outputs, *given],
            "display_name": self.title,
            "language": "python",
            "interrupt_mode": "signal",
            "metadata": {
                "kernel_provisioner": {"provisioner_name": PROVISIONER, "config": config},
                "debugger": False,
            },
        }

    def install(self, name: str = NAME, *, user: bool = False, prefix: str | None = None) -> Path:
        """Write it where Jupyter looks: for all users, for this user, or below a prefix; return its folder.

        Raises:
            InvalidParams: the name is unusable, the folder is not writable, or the options hold secrets.
        """
        if not name:  # Jupyter would take that of the temporary folder; any other that is unusable it refuses itself
            raise InvalidParams(f"The kernel's name '' is not usable: give one, such as {NAME}.")
        network = self.options.get("network")
        if isinstance(network, Mapping) and network.get("headers"):
            raise InvalidParams(
                "The headers of `network` would stand in kernel.json, where others can read them: leave them out, or "
                "serve kernels from Python, by agent_tools.jupyter.server."
            )
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            Path(folder, "kernel.json").write_text(json.dumps(self.content(), indent=1))
            try:
                return Path(KernelSpecManager().install_kernel_spec(folder, name, user=user, prefix=prefix))
            except (OSError, ValueError) as exc:
                raise InvalidParams(f"The kernelspec cannot be installed: {exc} Try --user or --sys-prefix.") from exc


def sandbox_config(options: Mapping[str, Any], work_dir: str, cwd: str) -> Config:
    """Return the options of a sandbox whose folder is that of the notebook, or a fresh one.

    Raises:
        InvalidParams: `work_dir` is neither 'cwd' nor 'fresh', or also an option.
    """
    if work_dir not in ("cwd", "fresh"):
        raise InvalidParams(f"work_dir={work_dir!r:.40} is not usable: give 'cwd' or 'fresh'.")
    if "work_dir" in options:
        raise InvalidParams("The options have a work_dir: leave it out, and give --work-dir cwd or fresh.")
    return {**options, **({"work_dir": cwd} if work_dir == "cwd" else {})}


def is_plain(outputs: str) -> bool:
    """Return whether outputs are to be plain.

    Raises:
        InvalidParams: it is neither 'all' nor 'plain'.
    """
    if outputs not in ("all", "plain"):
        raise InvalidParams(f"outputs={outputs!r:.40} is not usable: give 'all' or 'plain'.")
    return outputs == "plain"
